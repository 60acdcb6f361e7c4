#include "server/grammar_pool.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace sub8::server {

const char* const kXGrammarInstall =
    "python3 -m pip install --no-deps --target DIR xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2";

namespace {

constexpr size_t kMaxGrammarBytes = size_t{64} << 10;

ConstraintFactory factory(std::shared_ptr<GrammarProcess> process) {
  return
      [process = std::move(process)](uint32_t) -> Result<std::unique_ptr<engine::TokenConstraint>> {
        return process->open();
      };
}

}  // namespace

GrammarPool::GrammarPool(std::shared_ptr<GrammarHost> host, GrammarPoolOptions options)
    : options_(std::move(options)), host_(std::move(host)) {}

Result<std::unique_ptr<GrammarPool>> GrammarPool::start(const grammar::Vocabulary& vocabulary,
                                                        GrammarPoolOptions options) {
  SUB8_ASSIGN_OR_RETURN(std::shared_ptr<GrammarHost> host,
                        GrammarHost::start(options.host, vocabulary));
  return std::unique_ptr<GrammarPool>(new GrammarPool(std::move(host), std::move(options)));
}

// Those that are not alive any more are forgotten.
std::shared_ptr<GrammarProcess> GrammarPool::find_locked(const GrammarSpec& spec) {
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.spec == spec; });
  if (at == entries_.end()) return nullptr;
  if (!at->process->alive()) {
    entries_.erase(at);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, at);
  return at->process;
}

// Ends the least recently used process that nobody uses, and takes what it held from `bytes`. False
// if there is none.
bool GrammarPool::drop_unused(int64_t* bytes) {
  // Nobody can get hold of it meanwhile: that takes the mutex.
  const auto unused = std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& entry) {
    return entry.process.use_count() == 1;
  });
  if (unused == entries_.rend()) return false;
  if (bytes != nullptr) *bytes -= unused->process->bytes();
  entries_.erase(std::next(unused).base());
  return true;
}

void GrammarPool::trim() {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (entry.process.use_count() == 1) bytes += entry.process->bytes();
  }
  while (bytes > options_.max_unused_bytes && drop_unused(&bytes)) {
  }
}

Result<std::shared_ptr<GrammarProcess>> GrammarPool::find_or_start(const GrammarSpec& spec) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return cancelled("the server is shutting down; try again later");
  if (std::shared_ptr<GrammarProcess> known = find_locked(spec)) return known;
  trim();
  std::erase_if(entries_, [](const Entry& entry) { return !entry.process->alive(); });
  if (entries_.size() >= options_.max_processes && !drop_unused()) {
    return resource_exhausted(fmt::format(
        "{} different grammars are in use, which is the limit; try again later", entries_.size()));
  }
  SUB8_ASSIGN_OR_RETURN(GrammarHost::Child child, host_->spawn(spec));
  entries_.push_front(
      {spec, std::make_shared<GrammarProcess>(host_, std::move(child), options_.timeout)});
  return entries_.front().process;
}

Result<ConstraintFactory> GrammarPool::compile(const GrammarSpec& spec) {
  if (spec.text.size() > kMaxGrammarBytes) {
    return invalid_argument(fmt::format("the grammar has {} bytes, the limit is {}",
                                        spec.text.size(), kMaxGrammarBytes));
  }
  // Once more where it was not the grammar's fault: somebody killed the process, or the host.
  for (bool again = false;; again = true) {
    SUB8_ASSIGN_OR_RETURN(std::shared_ptr<GrammarProcess> process, find_or_start(spec));
    Status compiled = process->wait_compiled();
    if (compiled.ok()) return factory(std::move(process));
    if (again || !process->vanished()) return std::move(compiled).error();
  }
}

std::optional<ConstraintFactory> GrammarPool::find(const GrammarSpec& spec) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<GrammarProcess> known = find_locked(spec);
  if (known == nullptr || !known->compiled()) return std::nullopt;
  return factory(std::move(known));
}

void GrammarPool::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (const Entry& entry : entries_) {
    if (!entry.process->compiled())
      entry.process->fail(cancelled("the server is shutting down; try again later"));
  }
}

}  // namespace sub8::server
