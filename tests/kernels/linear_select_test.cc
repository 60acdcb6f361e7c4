// Choice of CUDA linear kernels, on a made-up list of kernels: needs no GPU and no CUDA.
#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/linear/cuda/select.h"
#include "pack/cuda/byte_layout.h"

namespace sub8::kernels::linear {
namespace {

// Tiles like those of instances.cu.
KernelEntry tile(MainLoop loop, int tokens, int rows, int units, int cluster, int residents,
                 int teams) {
  KernelEntry e = {};
  e.codec = "e3m2", e.element = format::kE3M2, e.operand = pack::Operand::kBF16;
  e.loop = loop, e.tokens = tokens, e.rows = rows, e.units = units, e.cluster = cluster;
  e.ctas_per_sm = 1, e.residents = residents, e.teams = teams;
  e.x_bytes = static_cast<uint32_t>(tokens * 128 * units);
  return e;
}

const std::vector<KernelEntry>& tiles() {
  constexpr MainLoop kMma = MainLoop::kFragment;
  constexpr MainLoop kWgmma = MainLoop::kWarpgroup;
  static const std::vector<KernelEntry> list = {tile(kMma, 8, 256, 2, 1, 2, 8),
                                                tile(kMma, 8, 256, 2, 1, 1, 16),
                                                tile(kMma, 16, 256, 2, 1, 2, 8),
                                                tile(kWgmma, 16, 256, 2, 1, 1, 4),
                                                tile(kWgmma, 32, 256, 2, 1, 1, 4),
                                                tile(kWgmma, 64, 256, 2, 1, 1, 4),
                                                tile(MainLoop::kSliced, 8, 32, 16, 1, 2, 16),
                                                tile(MainLoop::kSliced, 8, 64, 8, 1, 2, 16),
                                                tile(kWgmma, 32, 64, 4, 1, 1, 4),
                                                tile(kWgmma, 64, 64, 4, 1, 1, 4),
                                                tile(kWgmma, 64, 128, 4, 1, 1, 4),
                                                tile(kWgmma, 128, 64, 2, 2, 1, 2),
                                                tile(kWgmma, 128, 256, 1, 2, 1, 2),
                                                tile(kWgmma, 256, 128, 1, 2, 1, 2)};
  return list;
}

KernelEntry byte_tile(int tokens, int rows, int units, int cluster) {
  KernelEntry e = tile(MainLoop::kByteWarpgroup, tokens, rows, units, cluster, 1, 2);
  e.codec = "e2m1_g32", e.element = format::kE2M1, e.groups = pack::GroupKind::k32;
  e.operand = pack::Operand::kE4M3;
  return e;
}

// Tiles like those of byte_instances.cu.
const std::vector<KernelEntry>& byte_tiles() {
  static const std::vector<KernelEntry> list = {byte_tile(16, 256, 2, 1), byte_tile(32, 256, 2, 1),
                                                byte_tile(64, 256, 2, 1), byte_tile(128, 128, 2, 2),
                                                byte_tile(256, 128, 1, 2)};
  return list;
}

const Card kCard;

pack::CudaLinearLayout layout_of(const char* format, int64_t rows, int64_t cols) {
  return pack::make_cuda_linear_layout(format::parse_weight_format(format).value(), rows, cols,
                                       format::Half::kBF16)
      .value();
}

}  // namespace

#define SUB8_NO_KERNELS(name) \
  KernelEntryList kernel_entries_##name() { return {nullptr, 0}; }
#define SUB8_NO_BYTE_KERNELS(name) \
  KernelEntryList byte_entries_##name() { return {nullptr, 0}; }
SUB8_NO_KERNELS(dense)
SUB8_NO_KERNELS(e2m0)
SUB8_NO_KERNELS(e1m1)
SUB8_NO_KERNELS(e2m1)
SUB8_NO_KERNELS(e2m1_g16)
SUB8_NO_KERNELS(e2m1_g32)
SUB8_NO_KERNELS(e2m2)
SUB8_NO_KERNELS(e3m1)
SUB8_NO_KERNELS(e3m2_g32)
SUB8_NO_KERNELS(e2m3)
SUB8_NO_KERNELS(e2m3_g32)
SUB8_NO_KERNELS(e3m3)
SUB8_NO_KERNELS(e4m3)
SUB8_NO_BYTE_KERNELS(e2m1)
SUB8_NO_BYTE_KERNELS(e2m2)
SUB8_NO_BYTE_KERNELS(e3m1)
SUB8_NO_BYTE_KERNELS(e3m2)
SUB8_NO_BYTE_KERNELS(e3m2_g32)
SUB8_NO_BYTE_KERNELS(e2m3)
SUB8_NO_BYTE_KERNELS(e2m3_g32)
KernelEntryList byte_entries_e2m1_g32() {
  return {byte_tiles().data(), static_cast<int>(byte_tiles().size())};
}
KernelEntryList kernel_entries_e3m2() { return {tiles().data(), static_cast<int>(tiles().size())}; }

namespace {

TEST(LinearSelect, MoreRowsTakeLargerTiles) {
  const pack::CudaLinearLayout layout = layout_of("e3m2", 28672, 8192);
  int last = 0;
  for (const int64_t m : {1, 8, 16, 32, 64, 128, 256, 4096}) {
    const std::vector<Choice> found = candidates(layout, m, kCard, {}, nullptr);
    ASSERT_FALSE(found.empty());
    EXPECT_GE(found[0].entry.tokens, last) << "M = " << m;
    last = found[0].entry.tokens;
    for (size_t i = 1; i < found.size(); ++i)
      EXPECT_LE(found[i - 1].estimate_us, found[i].estimate_us);
  }
  EXPECT_EQ(last, 256);
}

// Tiles of 256 rows of a small layer would leave more time to the exchange of sums than to the
// work.
TEST(LinearSelect, SmallLayersTakeFewerRowsOfW) {
  const auto rows_of = [](int64_t n, int64_t k, int64_t m) {
    return candidates(layout_of("e3m2", n, k), m, kCard, {}, nullptr)[0].entry.rows;
  };
  EXPECT_EQ(rows_of(4096, 4096, 64), 64);
  EXPECT_EQ(rows_of(8192, 8192, 128), 64);
  EXPECT_EQ(rows_of(28672, 8192, 64), pack::kTileRows);
  EXPECT_EQ(rows_of(28672, 8192, 128), pack::kTileRows);
}

TEST(LinearSelect, ByteKernelsServeByteLayoutsOnly) {
  const format::WeightFormat mxfp4 = format::parse_weight_format("mxfp4").value();
  const auto bytes = pack::make_cuda_byte_layout(mxfp4, 8192, 8192).value();
  EXPECT_TRUE(candidates(layout_of("mxfp4", 8192, 8192), 16, kCard, {}, nullptr).empty());
  int last = 0;
  for (const int64_t m : {1, 16, 32, 64, 128, 4096}) {
    const std::vector<Choice> found = candidates(bytes, m, kCard, {}, nullptr);
    ASSERT_EQ(found.size(), byte_tiles().size());
    EXPECT_GE(found[0].entry.tokens, last) << "M = " << m;
    last = found[0].entry.tokens;
    const Division d = divide(found[0].entry, 1, bytes, m, kCard.sms);
    EXPECT_EQ(int64_t{d.k_stages} * found[0].entry.units * 128, 8192);
  }
  EXPECT_EQ(kernel_id(byte_tiles()[0]), "linear_e2m1_g32_e4m3_wgmma_256x16x256_w2");
  Wanted wanted;
  wanted.batch_invariant = true;
  for (const Choice& c : candidates(bytes, 20, kCard, wanted, nullptr)) {
    EXPECT_EQ(c.entry.units, 2);
    EXPECT_GE(c.entry.tokens, 20);
    EXPECT_LE(c.entry.tokens, kInvariantRows);
  }
}

TEST(LinearSelect, DivisionCoversAllWork) {
  for (const KernelEntry& e : tiles()) {
    for (const int64_t m : {1, 100, 1000}) {
      const pack::CudaLinearLayout layout = layout_of("e3m2", 1000, 3424);
      const Division d = divide(e, 1, layout, m, kCard.sms);
      EXPECT_GE(int64_t{d.row_tiles} * e.cluster * e.rows, layout.rows);
      EXPECT_GE(int64_t{d.token_tiles} * e.tokens, m);
      EXPECT_GE(int64_t{d.k_stages} * e.units, layout.k_pieces());
      EXPECT_EQ(d.stages, int64_t{d.row_tiles} * d.token_tiles * d.k_stages);
      EXPECT_LE(d.workers * e.cluster, kCard.sms);
      EXPECT_GE(d.workers, 1);
    }
  }
}

// Split points follow from the number of workers and stages: both must not depend on M.
TEST(LinearSelect, BatchInvariantKernelsDivideAlike) {
  const pack::CudaLinearLayout layout = layout_of("e3m2", 4096, 4096);
  int32_t workers = 0;
  for (int64_t m = 1; m <= kInvariantRows; ++m) {
    Wanted wanted;
    wanted.batch_invariant = true;
    const std::vector<Choice> found = candidates(layout, m, kCard, wanted, nullptr);
    ASSERT_FALSE(found.empty());
    const Choice& c = found[0];
    ASSERT_EQ(c.entry.loop, MainLoop::kWarpgroup);
    const Division d = divide(c.entry, c.ctas_per_sm, layout, m, kCard.sms);
    ASSERT_EQ(d.token_tiles, 1) << "M = " << m;
    if (m == 1) workers = d.workers;
    ASSERT_EQ(d.workers, workers) << "M = " << m;
  }
}

TEST(LinearSelect, RefusalsAreNamed) {
  const pack::CudaLinearLayout layout = layout_of("e3m2", 4096, 4096);
  Wanted wanted;
  wanted.id_end = "wgmma_256x64x128_w4";
  std::string refused;
  const std::vector<Choice> found = candidates(layout, 1, kCard, wanted, &refused);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(kernel_id(found[0].entry), "linear_e3m2_bf16_wgmma_256x64x128_w4");
  EXPECT_NE(refused.find("linear_e3m2_bf16_mma_256x8x128_w8: refused: its id does not end with"),
            std::string::npos)
      << refused;
  EXPECT_TRUE(candidates(layout_of("nvfp4", 256, 256), 1, kCard, {}, nullptr).empty());
}

// 16-bit weights: a slot takes 68 KB, and half of an SM's shared memory holds only one.
TEST(LinearSelect, OneRingSlotIsRefused) {
  const KernelEntry e = tile(MainLoop::kFragment, 16, 256, 2, 1, 2, 8);
  EXPECT_EQ(ring_slots(e, 16 * 512, 16, 2, kCard), 1u);
  EXPECT_EQ(ring_slots(e, 16 * 512, 16, 1, kCard), 3u);
  EXPECT_GE(ring_slots(e, 8 * 512, 16, 2, kCard), 2u);
  Card small = kCard;
  small.shared_bytes = small.shared_bytes_per_sm = 100 * 1024;
  std::string refused;
  for (const Choice& c : candidates(layout_of("e3m2", 4096, 4096), 64, small, {}, &refused))
    EXPECT_GE(ring_slots(c.entry, 6 * 512, 64, c.residents, small), 2u);
  EXPECT_NE(refused.find("mma_256x8x128_w8: refused: shared memory holds no two ring slots"),
            std::string::npos)
      << refused;
}

// Every SM gets a CTA in every launch; whole tiles where that keeps nearly all of them busy.
TEST(LinearSelect, SlicedTilesAreDealtOut) {
  const KernelEntry e = tile(MainLoop::kSliced, 8, 32, 16, 1, 2, 16);
  const Division few = divide(e, 1, layout_of("e3m2", 4096, 4096), 1, kCard.sms);
  EXPECT_EQ(few.row_tiles, 128);
  EXPECT_EQ(few.workers, kCard.sms);
  EXPECT_EQ(few.rest_tiles, 0);
  EXPECT_EQ(few.k_stages, 4);
  const Division more = divide(e, 1, layout_of("e3m2", 6144, 4096), 1, kCard.sms);
  EXPECT_EQ(more.rest_tiles, 192 - 132);
  // Too little work to divide among all: whole tiles.
  EXPECT_EQ(divide(e, 1, layout_of("e3m2", 301, 72), 1, kCard.sms).rest_tiles, 0);
}

TEST(LinearSelect, SlicedSlotsFollowTheRows) {
  const KernelEntry e = tile(MainLoop::kSliced, 16, 64, 8, 1, 2, 16);
  EXPECT_EQ(slot_rows(e, 1), 2);  // one row, and one of zeros for the lanes of the others
  EXPECT_EQ(slot_rows(e, 2), 4);
  EXPECT_EQ(slot_rows(e, 8), 16);
  EXPECT_EQ(slot_rows(e, 16), 16);
  EXPECT_EQ(ring_slot_size(e, 3072, 1), 8u * (2 * 128 + 3072));
  std::string refused;
  for (const Choice& c : candidates(layout_of("e3m2", 4096, 4096), 9, kCard, {}, &refused))
    EXPECT_FALSE(c.entry.loop == MainLoop::kSliced && c.entry.tokens < 9);
  EXPECT_NE(refused.find("sliced_32x8x1024_w16: refused: more rows of X than its tile has"),
            std::string::npos)
      << refused;
}

TEST(LinearSelect, IdsAreUnique) {
  std::vector<std::string> ids;
  for (const KernelEntry& e : tiles()) ids.push_back(kernel_id(e));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

}  // namespace
}  // namespace sub8::kernels::linear
