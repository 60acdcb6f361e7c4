#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace sub8::checkpoint {
namespace {

namespace fs = std::filesystem;
using format::DType;

Result<SafetensorsFile> parse(const std::string& bytes) {
  return SafetensorsFile::parse(as_bytes(bytes), "t.safetensors", nullptr);
}

void expect_refused(const std::string& header, const std::string& data, const char* part) {
  const std::string bytes = raw_safetensors(header, data);
  const auto file = parse(bytes);
  ASSERT_FALSE(file.ok()) << header;
  EXPECT_NE(file.error().message.find(part), std::string::npos) << file.error().message;
  EXPECT_NE(file.error().message.find("t.safetensors"), std::string::npos) << file.error().message;
}

// A tensor whose shape, dtype and byte range do not agree.
TEST(Safetensors, ShapeAndRangeMustAgree) {
  const std::string four(4, 'x');
  expect_refused(R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})", four,
                 "\"w\"");
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four, "reversed");
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", four,
                 "data_offsets");
  expect_refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four, "needs");
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", four, "3 numbers");
  expect_refused(R"({"w":{"dtype":"F64","shape":[4],"data_offsets":[0,16]}})", std::string(16, 0),
                 "needs 32");
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807]", "[3,6148914691236517206]"}) {
    expect_refused(
        std::string(R"({"w":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,4]}})", four,
        "overflows");
  }
  expect_refused(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four, "shape");
  expect_refused(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", four, "shape");
  expect_refused(R"({"w":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}})", four, "F4");
  expect_refused(R"({"w":{"dtype":"F32","shape":[1]}})", four, "data_offsets");
  expect_refused(R"({"w":[]})", four, "not an object");
}

TEST(Safetensors, DataIsCoveredOnceAndWhole) {
  const std::string eight(8, 'x');
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                     "b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                 std::string(6, 'x'), "overlaps");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight, "no tensor");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", eight, "8");
  expect_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                     "a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                 eight, "twice");
  expect_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", eight,
                 "twice");
}

TEST(Safetensors, HeaderIsChecked) {
  for (const std::string& bytes :
       {std::string(), std::string("1234567"), little_endian(uint64_t{100}) + "{}",
        little_endian(UINT64_MAX) + "{}", little_endian(uint64_t{0}),
        little_endian(uint64_t{2}) + "[]", little_endian(uint64_t{3}) + "{}x"}) {
    EXPECT_FALSE(parse(bytes).ok());
  }
  expect_refused(R"({"__metadata__":{"a":1}})", "", "__metadata__");
  const auto empty = parse(raw_safetensors(R"({"__metadata__":{"a":"b"}}   )", ""));
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->metadata().at("a"), "b");
}

// Odd but valid: header length 2 mod 4, an odd-length tensor first, empty and scalar tensors.
TEST(Safetensors, OddFilesLoad) {
  const float value = 1.5F;
  std::string header = R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
    "e":{"dtype":"BF16","shape":[0],"data_offsets":[3,3]},
    "z":{"dtype":"F32","shape":[4,0],"data_offsets":[7,7]},
    "s":{"dtype":"F32","shape":[],"data_offsets":[3,7]}})";
  while (header.size() % 4 != 2) header += ' ';
  const std::string bytes = raw_safetensors(header, "abc" + little_endian(value));
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& t : file->tensors()) by_name[t.name] = &t;
  EXPECT_EQ(by_name.at("e")->data.size(), 0U);
  EXPECT_EQ(by_name.at("z")->elements(), 0);
  ASSERT_EQ(by_name.at("s")->data.size(), 4U);
  EXPECT_EQ(std::memcmp(by_name.at("s")->data.data(), &value, 4), 0);
  EXPECT_EQ(by_name.at("u")->data[2], 'c');
}

TEST(Safetensors, TruncatedShardNamesFileAndBytes) {
  const fs::path from = fs::path(SUB8_TEST_DATA) / "models/llama-sharded";
  const std::string victim = "model-00002-of-00003.safetensors";
  const std::string whole = read_text(from / victim);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (const size_t keep : {whole.size() - 1, whole.size() - 100, static_cast<size_t>(header) + 8,
                            size_t{20}, size_t{4}}) {
    TempDir dir;
    fs::copy(from, dir.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    write_text(dir / victim, whole.substr(0, keep));
    const auto model = SafetensorsModel::open(dir.path());
    ASSERT_FALSE(model.ok()) << keep;
    EXPECT_EQ(model.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(model.error().message.find(victim), std::string::npos);
    EXPECT_NE(model.error().message.find(std::to_string(keep)), std::string::npos)
        << model.error().message;
    if (keep > header + 8) {
      EXPECT_NE(model.error().message.find(std::to_string(whole.size())), std::string::npos)
          << model.error().message;
    }
  }
}

TEST(Safetensors, ShardIndexIsChecked) {
  const fs::path from = fs::path(SUB8_TEST_DATA) / "models/llama-sharded";
  const auto broken = [&](auto change) {
    TempDir dir;
    fs::copy(from, dir.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    change(dir);
    const auto model = SafetensorsModel::open(dir.path());
    EXPECT_FALSE(model.ok());
    return model.ok() ? Error{} : model.error();
  };
  const Error missing =
      broken([](TempDir& d) { fs::remove(d / "model-00003-of-00003.safetensors"); });
  EXPECT_EQ(missing.code, ErrorCode::kNotFound);
  EXPECT_NE(missing.message.find("model-00003-of-00003"), std::string::npos);
  const auto index = [](std::string_view text) {
    return [text](TempDir& d) { write_text(d / "model.safetensors.index.json", text); };
  };
  (void)broken(index(R"({"weight_map":{"a":"../../etc/passwd"}})"));
  (void)broken(index(R"({"weight_map":{}})"));
  (void)broken(index(R"({"weight_map":{"nope":"model-00001-of-00003.safetensors"}})"));
  (void)broken(index(R"({})"));
  (void)broken([](TempDir& d) {  // the same tensors twice
    fs::copy(d / "model-00001-of-00003.safetensors", d / "model-00002-of-00003.safetensors",
             fs::copy_options::overwrite_existing);
  });
}

// Two models in one directory: nothing says which is meant. An index may list model.safetensors.
TEST(Safetensors, AFileBesideAnIndexIsRefused) {
  const fs::path data = SUB8_TEST_DATA;
  TempDir dir;
  const auto keep = fs::copy_options::recursive | fs::copy_options::overwrite_existing;
  fs::copy(data / "models/llama-sharded", dir.path(), keep);
  fs::copy(data / "models/llama/model.safetensors", dir / "model.safetensors", keep);
  const auto two = SafetensorsModel::open(dir.path());
  ASSERT_FALSE(two.ok());
  EXPECT_EQ(two.error().code, ErrorCode::kCorruptData);
  EXPECT_NE(two.error().message.find((dir / "model.safetensors").string()), std::string::npos);
  EXPECT_NE(two.error().message.find("index.json"), std::string::npos);

  fs::remove(dir / "model.safetensors");
  fs::rename(dir / "model-00002-of-00003.safetensors", dir / "model.safetensors");
  std::string index = read_file(dir / "model.safetensors.index.json").value();
  const std::string shard = "model-00002-of-00003.safetensors";
  for (size_t at = 0; (at = index.find(shard, at)) != std::string::npos;) {
    index.replace(at, shard.size(), "model.safetensors");
  }
  write_text(dir / "model.safetensors.index.json", index);
  const auto listed = SafetensorsModel::open(dir.path());
  EXPECT_TRUE(listed.ok()) << listed.error().message;
}

std::vector<TensorSpec> sample_specs() {
  std::vector<TensorSpec> out(4);
  out[0].name = "a", out[0].dtype = DType::kU8, out[0].shape = {5};
  out[1].name = "b", out[1].dtype = DType::kF32, out[1].shape = {2, 3};
  out[2].name = "c", out[2].dtype = DType::kBF16, out[2].shape = {0};
  out[3].name = "d", out[3].dtype = DType::kF32, out[3].shape = {};
  return out;
}

std::string sample_bytes(const TensorSpec& spec) {
  std::string out(static_cast<size_t>(spec.byte_size()), '\0');
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(spec.name[0] + 7 * i);
  return out;
}

void write_sample(const fs::path& directory, bool reversed, int64_t shard_bytes) {
  std::vector<TensorSpec> specs = sample_specs();
  auto writer = SafetensorsWriter::create(directory, specs, {{"format", "pt"}}, shard_bytes);
  ASSERT_TRUE(writer.ok());
  if (reversed) std::reverse(specs.begin(), specs.end());
  for (const TensorSpec& spec : specs) {
    const std::string bytes = sample_bytes(spec);
    const auto half = static_cast<int64_t>(bytes.size() / 2);
    ASSERT_TRUE(
        writer->write_part(spec.name, half, as_bytes(bytes).subspan(static_cast<size_t>(half)))
            .ok());
    ASSERT_TRUE(
        writer->write_part(spec.name, 0, as_bytes(bytes).first(static_cast<size_t>(half))).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
}

TEST(SafetensorsWriter, RoundTripIsAlignedAndDeterministic) {
  TempDir one;
  TempDir two;
  write_sample(one.path(), false, SafetensorsWriter::kDefaultShardBytes);
  write_sample(two.path(), true, SafetensorsWriter::kDefaultShardBytes);
  EXPECT_EQ(read_text(one / "model.safetensors"), read_text(two / "model.safetensors"));
  const auto model = SafetensorsModel::open(one.path());
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->metadata().at("format"), "pt");
  for (const TensorSpec& spec : sample_specs()) {
    const Tensor* t = model->find(spec.name);
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->shape, spec.shape);
    EXPECT_EQ(t->dtype, spec.dtype);
    EXPECT_EQ(std::string(t->data.begin(), t->data.end()), sample_bytes(spec));
    EXPECT_EQ(t->file_offset % format::dtype_bytes(t->dtype), 0U);
  }
}

TEST(SafetensorsWriter, ShardsBySize) {
  TempDir dir;
  write_sample(dir.path(), false, 6);
  EXPECT_TRUE(fs::exists(dir / "model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(dir / "model-00001-of-00003.safetensors"));
  const auto model = SafetensorsModel::open(dir.path());
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files().size(), 3U);
  EXPECT_EQ(model->tensors().size(), 4U);
}

TEST(SafetensorsWriter, RefusesWrongUse) {
  TempDir dir;
  std::vector<TensorSpec> specs = sample_specs();
  auto writer = SafetensorsWriter::create(dir.path(), specs, {});
  ASSERT_TRUE(writer.ok());
  EXPECT_FALSE(writer->finish().ok());  // nothing was written
  EXPECT_FALSE(writer->write("a", as_bytes("1234")).ok());
  EXPECT_FALSE(writer->write("unknown", {}).ok());
  EXPECT_TRUE(writer->write("a", as_bytes("12345")).ok());
  EXPECT_FALSE(writer->write_part("a", 0, as_bytes("1")).ok());
  specs.push_back(specs[0]);
  EXPECT_FALSE(SafetensorsWriter::create(dir.path(), specs, {}).ok());
  specs.back().name = "x";
  specs.back().shape = {INT64_MAX, 2};
  EXPECT_FALSE(SafetensorsWriter::create(dir.path(), specs, {}).ok());
}

}  // namespace
}  // namespace sub8::checkpoint
