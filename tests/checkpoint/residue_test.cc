// sub8/residue.*: what is written reads back; what does not fit is refused by name.
#include "checkpoint/residue.h"

#include <bit>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "format/activation.h"

namespace sub8::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Bytes {
  std::vector<uint8_t> codes, scales;
};

// A copy of an export, with statistics that differ from channel to channel.
class ResidueFiles : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sub8-residue-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    fs::copy(fs::path(SUB8_TEST_DATA) / "exports" / GetParam(), dir_,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    auto source = open_checkpoint(dir_);
    ASSERT_TRUE(source.ok());
    source_ = std::move(source).value();
    for (const WeightInfo& info : source_->weights()) {
      if (!info.quantized()) continue;
      ResidueModule& module = residue_.modules[info.name];
      for (int64_t k = 0; k < info.cols; ++k)
        module.mean_abs.push_back(static_cast<float>((k * 37 + 11) % 64) / 16.0f);
      module.amax = 5.5f;
      select_channels(module);
      plan_[info.name] = {1, 2};
    }
    ASSERT_FALSE(plan_.empty());
    residue_.original = "base";
    residue_.text = "book.txt";
    residue_.samples = 3;
    residue_.length = 64;
    residue_.tokens = 190;
    residue_.seed = 42;
    residue_.alpha = format::AlphaSource::kStatic;
    for (int64_t layer = 0; layer < source_->config().layers; ++layer)
      residue_.kv_scales.push_back({0.25f + static_cast<float>(layer), 0.125f});
  }
  void TearDown() override { fs::remove_all(dir_); }

  Status write(const Residue& residue) {
    return write_residue(
        dir_, residue, *source_, plan_,
        [&](const std::string& name, size_t r) -> Result<StoredMatrix> {
          const StoredMatrix base = source_->matrix(name, format::DType::kBF16).value();
          StoredMatrix out;
          out.format = base.format;
          out.rows = base.rows;
          out.cols = base.cols / 8 * format::selected_per_group(kSelectRatios[r]);
          out.outer_scales = base.outer_scales;
          auto bytes = std::make_shared<Bytes>();
          for (int64_t i = 0; i < out.rows * out.format.row_bytes(out.cols); ++i)
            bytes->codes.push_back(static_cast<uint8_t>(i * 29 + static_cast<int64_t>(r)));
          bytes->scales.assign(static_cast<size_t>(out.rows * out.format.groups(out.cols)), 0x38);
          out.codes = bytes->codes;
          out.block_scales = bytes->scales;
          out.owner = bytes;
          return out;
        });
  }
  fs::path tensors() const { return dir_ / "sub8/residue.safetensors"; }
  fs::path json() const { return dir_ / "sub8/residue.json"; }

  // Overwrites bytes of a tensor of the first module, or of one with this whole name.
  void patch(const std::string& tensor, size_t offset, std::vector<uint8_t> bytes) {
    const auto file = SafetensorsFile::open(tensors()).value();
    for (const Tensor& t : file.tensors()) {
      if (t.name != plan_.begin()->first + "." + tensor && t.name != tensor) continue;
      std::fstream out(tensors(), std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(t.file_offset + offset));
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
      return;
    }
    FAIL() << "no tensor " << tensor;
  }
  void patch_float(const std::string& tensor, float value) {
    const auto bytes = std::bit_cast<std::array<uint8_t, 4>>(value);
    patch(tensor, 0, {bytes.begin(), bytes.end()});
  }
  void edit_json(std::string_view from, std::string_view to) {
    std::string text = read_file(json()).value();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(json(), std::ios::trunc) << text;
  }
  Error refusal() {
    const auto got = read_residue(dir_, *source_);
    EXPECT_FALSE(got.ok());
    return got.ok() ? Error{} : got.error();
  }
  void refused(std::string_view what, ErrorCode code = ErrorCode::kCorruptData) {
    const Error error = refusal();
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("residue"), std::string::npos) << error.message;
    ASSERT_TRUE(write(residue_).ok());  // whole again
  }

  fs::path dir_;
  std::unique_ptr<WeightSource> source_;
  Residue residue_;
  ExtensionPlan plan_;
};

TEST_P(ResidueFiles, ReadBackWhatWasWritten) {
  EXPECT_FALSE(has_residue(dir_));
  ASSERT_TRUE(write(residue_).ok());
  EXPECT_TRUE(has_residue(dir_));
  const auto got = read_residue(dir_, *source_);
  ASSERT_TRUE(got.ok()) << got.error().message;
  const Residue& r = **got;
  EXPECT_EQ(r.original, "base");
  EXPECT_EQ(r.text, "book.txt");
  EXPECT_EQ(std::tuple(r.samples, r.length, r.tokens, r.seed), std::tuple(3, 64, 190, 42u));
  ASSERT_EQ(r.modules.size(), residue_.modules.size());
  for (const auto& [name, want] : residue_.modules) {
    const ResidueModule* module = r.find(name);
    ASSERT_NE(module, nullptr);
    EXPECT_EQ(module->mean_abs, want.mean_abs);
    EXPECT_EQ(module->amax, want.amax);
    EXPECT_EQ(module->masks, want.masks);
    EXPECT_FALSE(module->extensions[0]);
    for (const size_t i : {1, 2}) {
      ASSERT_TRUE(module->extensions[i]);
      const StoredMatrix& m = *module->extensions[i];
      EXPECT_EQ(m.cols, source_->find(name)->cols / 8 * (i == 1 ? 2 : 4));
      EXPECT_EQ(m.codes[5], static_cast<uint8_t>(5 * 29 + i));
      EXPECT_EQ(m.outer_scales, source_->matrix(name, format::DType::kBF16)->outer_scales);
    }
  }
  EXPECT_EQ(r.find("model.norm"), nullptr);
  EXPECT_EQ(r.alpha, format::AlphaSource::kStatic);
  EXPECT_EQ(r.kv_scales, residue_.kv_scales);
  Residue less = residue_;
  less.alpha.reset();
  less.kv_scales.clear();
  ASSERT_TRUE(write(less).ok());
  EXPECT_FALSE((*read_residue(dir_, *source_))->alpha);
  EXPECT_TRUE((*read_residue(dir_, *source_))->kv_scales.empty());
  ASSERT_TRUE(write(residue_).ok());
  // The same again has the same bytes, and leaves nothing else.
  const std::string before = read_file(tensors()).value() + read_file(json()).value();
  ASSERT_TRUE(write(residue_).ok());
  EXPECT_EQ(read_file(tensors()).value() + read_file(json()).value(), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "sub8"), {}), 2);
}

TEST_P(ResidueFiles, RefusesWhatDoesNotFit) {
  ASSERT_TRUE(write(residue_).ok());
  patch("mask_250", 3, {0b0000'0111});
  refused("mask_250 selects 3 channels of group 3");
  patch("mask_125", 0, {0});
  refused("mask_125 selects 0 channels");
  // As many as the ratio says, but others than the means choose.
  patch("mask_125", 1,
        {static_cast<uint8_t>(residue_.modules.begin()->second.masks[0][1] == 1 ? 2 : 1)});
  refused("mask_125 selects other channels of group 1");
  patch_float("mean_abs", 3.99f);
  refused("than those with the largest means");
  patch_float("amax", 0.0f);
  refused("amax is 0, less than the mean");
  for (const auto& [value, text] : {std::pair(0.0f, "0"), std::pair(-1.0f, "-1"),
                                    std::pair(std::numeric_limits<float>::quiet_NaN(), "nan")}) {
    patch_float("kv_cache.k_scale", value);
    refused(fmt::format("kv_cache.k_scale has the value {} for layer 0", text));
  }
  edit_json("\"kv_scale_layers\": ", "\"kv_scale_layers\": 1");
  refused("the model has");
  edit_json("\"activation_alpha\": \"static\"", "\"activation_alpha\": \"tensor\"");
  refused("activation_alpha is 'tensor', expected 'row', 'static' or null");
  patch_float("mean_abs", -0.5f);
  refused("mean_abs has the value -0.5 at 0");
  patch_float("mean_abs", std::numeric_limits<float>::quiet_NaN());
  refused("mean_abs has the value nan");
  patch_float("amax", std::numeric_limits<float>::infinity());
  refused("amax has the value inf");
  patch("extension_500.weight_scale", 7, {0xff});
  refused("extension_500");
  if (source_->find(plan_.begin()->first)->format.outer_scale != format::OuterScale::kNone) {
    patch_float("extension_250.weight_scale_2", 0.0f);
    refused("weight_scale_2 is zero");
    patch_float("extension_250.weight_scale_2", std::numeric_limits<float>::quiet_NaN());
    refused("weight_scale_2 has the value nan");
  }
  edit_json("q_proj\": {", "r_proj\": {");
  refused("the model has no module \"model.layers.0.self_attn.r_proj\"");
  edit_json("\"format\": \"", "\"format\": \"e3m2 ");
  refused("was calibrated as");
  edit_json("\"format_version\": 2", "\"format_version\": 1");
  refused("version 2, the file has 1", ErrorCode::kUnsupported);
  edit_json("0.25,", "0.3,");
  refused("0.125, 0.25, 0.5");
  edit_json("0.25,\n        0.5", "0.25");
  refused("belongs to no module");
  edit_json("0.25,\n", "0.125, 0.25,\n");
  refused("extension_125.weight is missing");
  edit_json("\"id\": \"", "\"id\": \"0");
  refused("not of one calibration");
  fs::resize_file(tensors(), fs::file_size(tensors()) - 1);
  refused("residue.safetensors");
  fs::remove(tensors());
  refused("residue.safetensors", ErrorCode::kNotFound);
  fs::remove(json());
  EXPECT_TRUE(has_residue(dir_)) << "half a pair is not the same as none";
  refused("residue.json", ErrorCode::kNotFound);
}

// Codes of another quantisation have the same names, shapes and formats.
TEST_P(ResidueFiles, OtherWeightsAreRefused) {
  ASSERT_TRUE(write(residue_).ok());
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = SafetensorsFile::open(entry.path()).value();
    for (const Tensor& t : file.tensors()) {
      if (t.dtype != format::DType::kU8 || t.data.size() < 64) continue;
      std::fstream out(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(t.file_offset));
      out.put(static_cast<char>(t.data[0] ^ 1));
      break;
    }
  }
  source_ = open_checkpoint(dir_).value();
  refused("made for another model: the weights' values differ");
}

TEST_P(ResidueFiles, WhatElseIsInTheFolderStays) {
  fs::create_directory(dir_ / "sub8");
  std::ofstream(dir_ / "sub8/provenance.json") << "{}";
  std::ofstream(dir_ / "outside.json") << "keep";
  fs::create_symlink("../outside.json", json());
  ASSERT_TRUE(write(residue_).ok());
  EXPECT_EQ(read_file(dir_ / "sub8/provenance.json").value(), "{}");
  EXPECT_EQ(read_file(dir_ / "outside.json").value(), "keep") << "written through a link";
  EXPECT_FALSE(fs::is_symlink(json()));
  EXPECT_TRUE(read_residue(dir_, *source_).ok());
  // The folder itself is not followed either.
  fs::rename(dir_ / "sub8", dir_ / "elsewhere");
  fs::create_directory_symlink("elsewhere", dir_ / "sub8");
  const Status failed = write(residue_);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("is not a directory"), std::string::npos)
      << failed.error().message;
}

TEST_P(ResidueFiles, AFailureLeavesTheOldPair) {
  ASSERT_TRUE(write(residue_).ok());
  const std::string before = read_file(tensors()).value() + read_file(json()).value();
  Residue other = residue_;
  other.seed = 43;
  const Status failed = write_residue(
      dir_, other, *source_, plan_,
      [](const std::string&, size_t) -> Result<StoredMatrix> { return cancelled("interrupted"); });
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(read_file(tensors()).value() + read_file(json()).value(), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "sub8"), {}), 2);
  EXPECT_TRUE(read_residue(dir_, *source_).ok());
}

INSTANTIATE_TEST_SUITE_P(Exports, ResidueFiles, ::testing::Values("mo-nvfp4", "ct-mxfp4"),
                         [](const auto& p) { return std::string(p.param).substr(3); });

}  // namespace
}  // namespace sub8::checkpoint
