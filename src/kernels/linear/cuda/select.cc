#include "kernels/linear/cuda/select.h"

#include <algorithm>

#include "base/checked_math.h"

namespace sub8::kernels::linear {
namespace {

constexpr double kBytesPerNs = 4700.0 / 132;  // per SM, of weights from memory

// Nanoseconds in which an SM works through a unit of 64 rows if memory is no limit.
double unit_ns(const KernelEntry& e, int ctas_per_sm, int token_tiles) {
  const bool one_token_tile = token_tiles == 1;
  if (e.loop == MainLoop::kFragment) {
    // Eight warps alone do not hide all latencies.
    const bool few_warps = e.teams * ctas_per_sm < 16;
    return e.tokens == 8 ? (few_warps ? 77 : 67) : (few_warps ? 86 : 77);
  }
  const bool scales = e.groups != pack::GroupKind::kNone;
  if (e.operand == pack::Operand::kE4M3) {  // 128 k
    if (e.tokens <= 16) return 136;
    if (e.tokens <= 32) return one_token_tile ? 145 : scales ? 128 : 118;
    if (e.tokens <= 64) return 225;
    if (e.tokens <= 128) return 330;
    return scales ? 680 : 620;
  }
  if (e.tokens <= 16) return 82;
  if (e.tokens <= 32) return e.rows == pack::kTileRows ? 90 : 155;
  if (e.tokens <= 64) {
    if (e.rows == pack::kTileRows) return one_token_tile ? 128 : 145;
    return e.rows == pack::kPieceRows ? 180 : scales ? 140 : 158;
  }
  if (e.tokens <= 128)
    return e.rows == pack::kTileRows ? 217 : token_tiles <= 2 ? 240 + 15 * token_tiles : 285;
  return one_token_tile ? 400 : 430;
}

std::string refusal(const KernelEntry& e, const pack::CudaLinearLayout& layout, int64_t m,
                    const Card& card, const Wanted& wanted) {
  if (!kernel_id(e).ends_with(wanted.id_end)) return "its id does not end with " + wanted.id_end;
  if (wanted.ctas_per_sm > e.residents)
    return "at most " + std::to_string(e.residents) + " CTAs per SM";
  if (e.loop == MainLoop::kSliced && m > e.tokens) return "more rows of X than its tile has";
  if (ring_slots(e, layout.piece_bytes(), m, e.loop == MainLoop::kSliced ? 1 : e.residents, card) <
      2)
    return "shared memory holds no two ring slots of " +
           std::to_string(ring_slot_size(e, layout.piece_bytes(), m)) + " bytes";
  const bool line = e.loop == MainLoop::kWarpgroup || e.loop == MainLoop::kByteWarpgroup;
  if (wanted.batch_invariant && (!line || e.tokens > kInvariantRows || e.cluster > 1 ||
                                 e.units != 2 || e.rows != pack::kTileRows))
    return "its order of sums is not that of every M";
  if (wanted.batch_invariant && e.tokens < m)
    return "a second tile of rows would move the split points";
  return "";
}

}  // namespace

const std::vector<KernelEntry>& all_kernels() {
  static const std::vector<KernelEntry> entries = [] {
    std::vector<KernelEntry> out;
    const auto add = [&out](KernelEntryList list) {
      out.insert(out.end(), list.entries, list.entries + list.count);
    };
#define X(name, element, groups) add(kernel_entries_##name());
#include "kernels/linear/cuda/instances.inc"
#undef X
#define X(name, element, groups) add(byte_entries_##name());
#include "kernels/linear/cuda/byte_instances.inc"
#undef X
    return out;
  }();
  return entries;
}

int slot_rows(const KernelEntry& e, int64_t m) {
  int rows = 2;
  while (rows <= m && rows < e.tokens) rows *= 2;
  return rows;
}

uint32_t ring_slot_size(const KernelEntry& e, int64_t piece_bytes, int64_t m) {
  const int64_t x_bytes =
      e.loop == MainLoop::kSliced ? e.units * slot_rows(e, m) * int64_t{128} : e.x_bytes;
  return static_cast<uint32_t>(
      round_up<int64_t>(x_bytes + piece_bytes * e.rows / pack::kPieceRows * e.units, 1024));
}

uint32_t ring_slots(const KernelEntry& e, int64_t piece_bytes, int64_t m, int residents,
                    const Card& card) {
  constexpr uint32_t kMostSlots = 32;  // kMaxSlots of ring.cuh
  const int share = std::min(card.shared_bytes, card.shared_bytes_per_sm / residents - 1024);
  const uint32_t room = static_cast<uint32_t>(std::max(share, 0));
  const uint32_t beside = kRingOverhead + round_up<uint32_t>(e.beside_bytes, 1024);
  if (room <= beside) return 0;
  return std::min((room - beside) / ring_slot_size(e, piece_bytes, m), kMostSlots);
}

std::string kernel_id(const KernelEntry& e) {
  const int piece_cols = (e.operand == pack::Operand::kE4M3 ? 2 : 1) * pack::kPieceCols;
  std::string id = "linear_" + std::string(e.codec) +
                   (e.operand == pack::Operand::kF16    ? "_f16"
                    : e.operand == pack::Operand::kBF16 ? "_bf16"
                                                        : "_e4m3") +
                   (e.loop == MainLoop::kFragment ? "_mma_"
                    : e.loop == MainLoop::kSliced ? "_sliced_"
                                                  : "_wgmma_") +
                   std::to_string(e.rows) + "x" + std::to_string(e.tokens) + "x" +
                   std::to_string(e.units * piece_cols) + "_w" + std::to_string(e.teams);
  if (e.cluster > 1) id += "_c" + std::to_string(e.cluster);
  return id;
}

bool runs(const KernelEntry& e, const pack::CudaLinearLayout& layout) {
  const format::ElementFormat element = layout.format.dense ? kDense : layout.format.element;
  return e.element == element && e.operand == layout.operand() && e.groups == layout.group_kind();
}

Division divide(const KernelEntry& e, int ctas_per_sm, const pack::CudaLinearLayout& layout,
                int64_t m, int sms) {
  Division d;
  d.row_tiles = static_cast<int32_t>(ceil_div<int64_t>(
      round_up<int64_t>(layout.rows, pack::kPieceRows), int64_t{e.rows} * e.cluster));
  d.token_tiles = static_cast<int32_t>(ceil_div<int64_t>(m, e.tokens));
  d.k_stages = static_cast<int32_t>(ceil_div<int64_t>(layout.k_pieces(), e.units));
  d.stages = int64_t{d.row_tiles} * d.token_tiles * d.k_stages;
  d.workers = sms * ctas_per_sm / e.cluster;
  if (e.loop != MainLoop::kSliced)
    d.workers = static_cast<int32_t>(std::min<int64_t>(d.workers, d.stages));
  d.rest_tiles = d.row_tiles;
  if (e.loop != MainLoop::kSliced) return d;
  // Whole tiles only, where they keep nearly all CTAs busy: nothing is exchanged then.
  constexpr double kBusy = 0.92;
  const int64_t rounds = ceil_div<int64_t>(d.row_tiles, d.workers);
  d.rest_tiles = d.row_tiles % d.workers;
  if (d.row_tiles >= kBusy * static_cast<double>(rounds * d.workers) ||
      int64_t{d.rest_tiles} * d.k_stages < d.workers) {
    // CTAs without a tile stay, so that parts of two launches share SMs evenly.
    d.rest_tiles = 0;
  }
  return d;
}

namespace {

double sliced_us(const KernelEntry& e, const Division& d, int ctas_per_sm, int residents,
                 const pack::CudaLinearLayout& layout, int64_t m) {
  const double memory = static_cast<double>(layout.piece_bytes()) / kBytesPerNs * 1.02;
  const double unit = e.tokens == 8 ? 74 + 0.6 * static_cast<double>(m) : e.rows == 32 ? 110 : 96;
  const bool split = d.rest_tiles != 0;
  const double stages =
      split ? static_cast<double>(d.stages) / d.workers
            : static_cast<double>(ceil_div<int64_t>(d.row_tiles, d.workers)) * d.k_stages;
  double start = residents > ctas_per_sm ? 3000 : 3500;
  if (ring_slots(e, layout.piece_bytes(), m, residents, Card{}) < 3) start += 500;
  if (split) start += d.row_tiles < d.workers ? 3000 : 500;
  start += 300 * std::max(0, ceil_div(d.row_tiles, d.workers) - 1);
  return 1e-3 *
         (start + 30 * stages +
          stages * e.rows / pack::kPieceRows * e.units * ctas_per_sm * std::max(memory, unit));
}

}  // namespace

double estimate_us(const KernelEntry& e, int ctas_per_sm, int residents,
                   const pack::CudaLinearLayout& layout, int64_t m, int sms) {
  constexpr double kExchangedPerNs = 105;  // bytes of sums that one CTA reads
  const Division d = divide(e, ctas_per_sm, layout, m, sms);
  const double stages = static_cast<double>(ceil_div<int64_t>(d.stages, d.workers));
  const double memory = static_cast<double>(layout.piece_bytes()) / kBytesPerNs;
  const double unit =
      std::max(unit_ns(e, ctas_per_sm, d.token_tiles), d.token_tiles == 1 ? memory : 0.0);
  if (e.loop == MainLoop::kSliced) return sliced_us(e, d, ctas_per_sm, residents, layout, m);
  // Contributors that finish together with the one that adds: it waits for their sums.
  const double others = std::max(0.0, d.k_stages / stages - 0.5);
  double wait = 2000 * std::min(1.0, others / 2);
  const double exchange = others * e.tokens * e.rows * 4 / kExchangedPerNs * ctas_per_sm;
  if (e.cluster > 1) wait += 1000 * others;
  double start = 4000;
  if (e.loop == MainLoop::kFragment) {
    if (e.teams > 8) start = 3000;
    if (d.token_tiles > 1) start += 2000;
    wait += 250 * std::max(0.0, others - 4);
  }
  return 1e-3 * (start + stages * e.rows / pack::kPieceRows * e.units * unit * ctas_per_sm + wait +
                 exchange);
}

std::vector<Choice> candidates(const pack::CudaLinearLayout& layout, int64_t m, const Card& card,
                               const Wanted& wanted, std::string* refused) {
  std::vector<Choice> out;
  for (const KernelEntry& e : all_kernels()) {
    if (!runs(e, layout)) continue;
    const std::string why = refusal(e, layout, m, card, wanted);
    if (!why.empty()) {
      if (refused != nullptr) *refused += kernel_id(e) + ": refused: " + why + "\n";
      continue;
    }
    for (int ctas = 1; ctas <= e.residents; ++ctas) {
      if (wanted.ctas_per_sm != 0 && wanted.ctas_per_sm != ctas) continue;
      for (int residents = ctas; residents <= e.residents; ++residents) {
        if (wanted.residents != 0 && wanted.residents != residents) continue;
        // The other loops were measured with the most residents only.
        if (e.loop != MainLoop::kSliced && wanted.residents == 0 && residents != e.residents)
          continue;
        if (ring_slots(e, layout.piece_bytes(), m, residents, card) < 2) continue;
        out.push_back({e, ctas, residents, estimate_us(e, ctas, residents, layout, m, card.sms)});
      }
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Choice& a, const Choice& b) { return a.estimate_us < b.estimate_us; });
  return out;
}

}  // namespace sub8::kernels::linear
