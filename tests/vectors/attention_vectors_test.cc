// docs/vectors/kv.json, kv_pages.json and attention.json against this implementation
// (tools/vectors/make_vectors.py and make_attention_vectors.py).
#include <cmath>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "format/bits.h"
#include "format/kv.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/reference.h"
#include "kernels/kv_write/kv_write.h"

namespace sub8 {
namespace {

namespace json = boost::json;

// The list of a file's cases; `value` keeps it.
const json::array& cases(const std::string& name, json::value& value) {
  const std::string path = std::string(SUB8_VECTORS) + "/" + name + ".json";
  Result<std::string> text = read_file(path);
  SUB8_CHECK(text.ok());
  Result<json::value> parsed = parse_json(*text, path);
  SUB8_CHECK(parsed.ok());
  value = std::move(*parsed);
  const json::array& list = value.at("cases").as_array();
  EXPECT_FALSE(list.empty());
  return list;
}

std::vector<float> floats(const json::value& list) {
  std::vector<float> out;
  for (const json::value& x : list.as_array())
    out.push_back(static_cast<float>(x.to_number<double>()));
  return out;
}

std::vector<uint8_t> bytes(const json::value& hex) {
  const std::string text(hex.as_string());
  std::vector<uint8_t> out;
  for (size_t i = 0; i < text.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return out;
}

TEST(AttentionVectors, KvRows) {
  json::value value;
  for (const json::value& c : cases("kv", value)) {
    const bool value_side = c.at("what").as_string() == "v";
    const auto alpha = static_cast<float>(c.at("alpha").to_number<double>());
    const json::array& rows = c.at("rows").as_array();
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto x = floats(value.at("x").as_array()[r]);
      const auto d = static_cast<int64_t>(x.size());
      std::vector<uint8_t> codes(x.size());
      std::vector<uint8_t> scales;
      for (int64_t i = 0; i < d; i += 16) {
        scales.push_back(format::nvfp4_quantize_kv_block(x.data() + i, std::min<int64_t>(16, d - i),
                                                         alpha, value_side, codes.data() + i));
      }
      std::vector<uint8_t> packed(static_cast<size_t>(format::packed_row_bytes(d, 4)));
      format::pack_codes(codes.data(), d, 4, packed.data());
      EXPECT_EQ(packed, bytes(rows[r].at("codes"))) << c.at("what") << " row " << r;
      EXPECT_EQ(scales, bytes(rows[r].at("scales"))) << c.at("what") << " row " << r;
    }
  }
}

TEST(AttentionVectors, KvPages) {
  ThreadPool pool(1);
  json::value value;
  for (const json::value& c : cases("kv_pages", value)) {
    const kernels::KvLayout layout{
        kernels::parse_kv_type(std::string_view(c.at("type").as_string())).value(),
        c.at("kv_heads").to_number<int>(), c.at("head_dim").to_number<int>()};
    const auto want = bytes(c.at("memory"));
    ASSERT_EQ(static_cast<int64_t>(want.size()), 2 * layout.page_bytes());
    std::vector<int64_t> slots;
    std::vector<float> k, v;
    for (size_t i = 0; i < c.at("slots").as_array().size(); ++i) {
      slots.push_back(c.at("slots").as_array()[i].to_number<int64_t>());
      for (const float x : floats(c.at("k").as_array()[i])) k.push_back(x);
      for (const float x : floats(c.at("v").as_array()[i])) v.push_back(x);
    }
    const int64_t cols = int64_t{layout.kv_heads} * layout.head_dim;
    const kernels::KvScales scales{static_cast<float>(c.at("k_alpha").to_number<double>()),
                                   static_cast<float>(c.at("v_alpha").to_number<double>())};
    for (const CpuPath path : available_cpu_paths()) {
      std::vector<uint8_t> memory(want.size(), 0xee);
      kernels::kv_write(path, pool, {k.data(), cols}, {v.data(), cols},
                        static_cast<int64_t>(slots.size()), slots.data(),
                        {layout, memory.data(), scales});
      EXPECT_EQ(memory, want) << kernels::kv_type_name(layout.type) << " " << layout.head_dim;
    }
  }
}

// The reference gives the vectors' values, the kernels lie within its bound of them.
TEST(AttentionVectors, Attention) {
  ThreadPool pool(1);
  json::value value;
  for (const json::value& c : cases("attention", value)) {
    kernels::AttentionShape shape;
    shape.heads = c.at("heads").to_number<int>();
    shape.kv = {kernels::KvType::kNvfp4, c.at("kv_heads").to_number<int>(),
                c.at("head_dim").to_number<int>()};
    shape.kv_scales = {static_cast<float>(c.at("k_alpha").to_number<double>()),
                       static_cast<float>(c.at("v_alpha").to_number<double>())};
    shape.kind = kernels::parse_attention_kind(std::string_view(c.at("kind").as_string())).value();
    shape.scale = static_cast<float>(c.at("scale").to_number<double>());
    const auto memory = bytes(c.at("memory"));
    std::vector<int32_t> table;
    for (const auto& page : c.at("page_table").as_array())
      table.push_back(page.to_number<int32_t>());
    const std::vector<kernels::AttentionRow> rows = {
        {table.data(), c.at("position").to_number<int32_t>()}};
    const auto q = floats(c.at("q"));
    const auto cols = static_cast<int64_t>(q.size());
    const auto reference =
        kernels::attention_reference(shape, memory.data(), {q.data(), cols}, rows);
    const json::array& want = c.at("out").as_array();
    ASSERT_EQ(want.size(), reference.value.size());
    const auto expected = [&](size_t i) { return want[i].to_number<double>(); };
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(reference.value[i], expected(i), 1e-6 * std::abs(expected(i)) + 1e-9)
          << c.at("kind") << " element " << i;
    for (const CpuPath path : available_cpu_paths()) {
      std::vector<float> out(q.size(), NAN);
      auto workspace = AlignedBuffer<std::byte>::uninitialized(
                           kernels::attention_workspace_bytes(shape, 1, rows[0].position + 1))
                           .value();
      ASSERT_TRUE(kernels::attention(path, pool, shape, memory.data(), {q.data(), cols}, rows,
                                     kernels::f32_rows(out.data(), cols), workspace.span())
                      .ok());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_LE(std::abs(out[i] - expected(i)),
                  reference.bound[i] + 0x1p-23 * std::abs(expected(i)))
            << c.at("kind") << " " << cpu_path_name(path) << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace sub8
