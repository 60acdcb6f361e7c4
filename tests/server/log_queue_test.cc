#include "server/log_queue.h"

#include <algorithm>
#include <chrono>
#include <csignal>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <unistd.h>

namespace sub8::server {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    close_reader();
    ::close(ends[1]);
  }
  void close_reader() {
    if (ends[0] >= 0) ::close(ends[0]);
    ends[0] = -1;
  }
  std::string read_all() {
    std::string out;
    char piece[65536];
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    for (int quiet = 0; quiet < 20;) {
      const ssize_t n = ::read(ends[0], piece, sizeof(piece));
      if (n > 0) {
        out.append(piece, static_cast<size_t>(n));
        quiet = 0;
      } else {
        ::usleep(10'000);
        ++quiet;
      }
    }
    return out;
  }
  int ends[2] = {-1, -1};
};

TEST(LogQueue, LinesArriveInOrder) {
  Pipe pipe;
  auto queue = std::make_shared<LogQueue>(pipe.ends[1], 1 << 20);
  {
    spdlog::logger log("t", queue);
    log.set_pattern("%v");
    for (int i = 0; i < 100; ++i) log.info("line {}", i);
  }
  queue.reset();
  std::string want;
  for (int i = 0; i < 100; ++i) want += "line " + std::to_string(i) + "\n";
  EXPECT_EQ(pipe.read_all(), want);
}

// Whoever reads the log has stopped: nobody waits, what does not fit is counted, and when reading
// goes on the log says how much is missing.
TEST(LogQueue, AFullPipeStallsNobody) {
  Pipe pipe;
  auto queue = std::make_shared<LogQueue>(pipe.ends[1], 1 << 20);
  spdlog::logger log("t", queue);
  log.set_pattern("%v");
  const std::string line(1000, 'x');
  const auto start = Clock::now();
  for (int i = 0; i < 5000; ++i) log.info(line);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  const uint64_t dropped = queue->dropped();
  EXPECT_GT(dropped, 3000u);
  const std::string text = pipe.read_all();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<int64_t>(5000 - dropped + 1));
  EXPECT_NE(text.find("event=log_dropped lines=" + std::to_string(dropped)), std::string::npos);
  log.info("after");
  EXPECT_EQ(pipe.read_all(), "after\n");
  EXPECT_EQ(queue->dropped(), dropped);
}

TEST(LogQueue, EndsWhileThePipeIsFullOrGone) {
  for (const bool gone : {false, true}) {
    Pipe pipe;
    if (gone) {
      ::signal(SIGPIPE, SIG_IGN);
      pipe.close_reader();
    }
    auto queue = std::make_shared<LogQueue>(pipe.ends[1], 1 << 20);
    {
      spdlog::logger log("t", queue);
      const std::string line(1000, 'x');
      for (int i = 0; i < 500; ++i) log.info(line);
    }
    const auto start = Clock::now();
    queue.reset();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(4)) << gone;
  }
}

}  // namespace
}  // namespace sub8::server
