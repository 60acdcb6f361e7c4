#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "text/utf8.h"

namespace sub8 {
namespace {

constexpr uint64_t kNoMerge = UINT64_MAX;
constexpr uint64_t kEmptyKey = UINT64_MAX;
constexpr size_t kShortPiece = 40;      // symbols that are merged by plain search
constexpr size_t kCacheEntries = 8192;  // 64 bytes each
constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;

uint64_t hash_bytes(std::string_view text) {
  uint64_t h = text.size() * kMix;
  const char* p = text.data();
  size_t left = text.size();
  const auto mix = [&](uint64_t word) {
    h = (h ^ word) * kMix;
    h ^= h >> 29;
  };
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  if (left != 0) {
    uint64_t word = 0;
    for (size_t i = 0; i < left; ++i) word |= uint64_t{static_cast<unsigned char>(p[i])} << (8 * i);
    mix(word);
  }
  h *= kMix;
  return h ^ h >> 32;
}

bool byte_stands_for_itself(unsigned b) {
  return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> map = [] {
    std::array<char32_t, 256> out{};
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) out[b] = byte_stands_for_itself(b) ? b : next++;
    return out;
  }();
  return map;
}

// The byte of a stand-in character, or -1.
int character_byte(char32_t c) {
  static const std::array<int16_t, 0x144> map = [] {
    std::array<int16_t, 0x144> out{};
    out.fill(-1);
    for (int b = 0; b < 256; ++b) out[byte_characters()[b]] = static_cast<int16_t>(b);
    return out;
  }();
  return c < map.size() ? map[c] : -1;
}

std::string fallback_token(unsigned byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
}

}  // namespace

void append_byte_level(std::string_view bytes, std::string* out) {
  for (const char c : bytes) append_utf8(byte_characters()[static_cast<unsigned char>(c)], out);
}

bool decode_byte_level(std::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t pos = 0; pos < token.size();) {
    const int byte = character_byte(next_scalar(token, &pos));
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
  }
  return true;
}

bool Vocabulary::add(int32_t id, std::string_view text) {
  if (has(id) || find(text) != kNoToken) return false;
  if ((count_ + 1) * 2 > slots_.size()) grow();
  const uint64_t hash = hash_bytes(text);
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].second != kNoToken) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = {static_cast<uint32_t>(hash), id};
  tokens_[id] = {arena_.size(), static_cast<uint32_t>(text.size()), true};
  arena_ += text;
  ++count_;
  return true;
}

void Vocabulary::grow() {
  size_t size = std::max<size_t>(64, slots_.size() * 2);
  while (size < tokens_.size()) size *= 2;
  slots_.assign(size, {0, kNoToken});
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].present) continue;
    const uint64_t hash = hash_bytes(token(static_cast<int32_t>(id)));
    size_t slot = hash & (size - 1);
    while (slots_[slot].second != kNoToken) slot = (slot + 1) & (size - 1);
    slots_[slot] = {static_cast<uint32_t>(hash), static_cast<int32_t>(id)};
  }
}

int32_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return kNoToken;
  const uint64_t hash = hash_bytes(text);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot].second != kNoToken; slot = (slot + 1) & mask) {
    if (slots_[slot].first == static_cast<uint32_t>(hash) && token(slots_[slot].second) == text) {
      return slots_[slot].second;
    }
  }
  return kNoToken;
}

BpeModel::BpeModel(Vocabulary vocabulary, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options), raw_(0) {
  for (unsigned b = 0; b < 256; ++b) {
    std::string character;
    append_utf8(byte_characters()[b], &character);
    byte_ids_[b] = vocabulary_.find(character);
    fallback_ids_[b] = vocabulary_.find(fallback_token(b));
  }
  for (int c = 0; c < 128; ++c) {
    const char character = static_cast<char>(c);
    ascii_ids_[c] = vocabulary_.find({&character, 1});
  }
  all_bytes_ = std::all_of(byte_ids_, byte_ids_ + 256, [](int32_t id) { return id != kNoToken; });
}

Status BpeModel::add_merge(int32_t left, int32_t right) {
  std::string joined(vocabulary_.token(left));
  joined += vocabulary_.token(right);
  if (vocabulary_.find(joined) == kNoToken) {
    return corrupt_data("the merged token is not in the vocabulary");
  }
  merges_.push_back({left, right});
  return {};
}

void BpeModel::finish() {
  int bits = 4;
  while ((size_t{1} << bits) < merges_.size() * 2) ++bits;
  shift_ = 64 - bits;
  slots_.assign(size_t{1} << bits, {kEmptyKey, 0});
  const size_t mask = slots_.size() - 1;
  std::string joined;
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const auto [left, right] = merges_[rank];
    joined = vocabulary_.token(left);
    joined += vocabulary_.token(right);
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    size_t slot = key * kMix >> shift_;
    while (slots_[slot].key != kEmptyKey && slots_[slot].key != key) slot = (slot + 1) & mask;
    slots_[slot] = {key, rank << 32 | static_cast<uint32_t>(vocabulary_.find(joined))};
  }
  find_joints();
  if (options_.byte_level && options_.ignore_merges) {
    raw_ = Vocabulary(vocabulary_.size());
    std::string bytes;
    for (size_t id = 0; id < vocabulary_.size(); ++id) {
      if (!vocabulary_.has(static_cast<int32_t>(id))) continue;
      if (!decode_byte_level(vocabulary_.token(static_cast<int32_t>(id)), &bytes)) continue;
      raw_.add(static_cast<int32_t>(id), bytes);
    }
  }
}

// A merge joins at the last character of its left token and the first of its right one. That holds
// while every symbol that merges is spelt by its characters, which byte and unknown tokens are not.
void BpeModel::find_joints() {
  const auto irregular = [&](int32_t id) {
    return id == options_.unk_id ||
           (options_.byte_fallback &&
            std::find(fallback_ids_, fallback_ids_ + 256, id) != fallback_ids_ + 256);
  };
  joints_.assign((size_t{1} << kJointBits) / 64, 0);
  for (const Merge& merge : merges_) {
    const std::string_view left = vocabulary_.token(merge.left);
    const std::string_view right = vocabulary_.token(merge.right);
    // Only a token of a byte's six characters, or the unknown one, can be irregular.
    if (left.empty() || right.empty() || merge.left == options_.unk_id ||
        merge.right == options_.unk_id || (left.size() == 6 && irregular(merge.left)) ||
        (right.size() == 6 && irregular(merge.right))) {
      joints_.clear();
      return;
    }
    size_t end = 0;
    next_scalar(right, &end);
    const int32_t before = vocabulary_.find(left.substr(previous_scalar(left, left.size())));
    const int32_t behind = vocabulary_.find(right.substr(0, end));
    if (before == kNoToken || behind == kNoToken) continue;  // can never come about
    const uint64_t h = joint_hash(before, behind);
    joints_[h >> 6] |= uint64_t{1} << (h & 63);
  }
}

uint64_t BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = key * kMix >> shift_;; slot = (slot + 1) & mask) {
    if (slots_[slot].key == key) return slots_[slot].value;
    if (slots_[slot].key == kEmptyKey) return kNoMerge;
  }
}

// One id per character, with fallback and unknown tokens in the order of the reference: unknown
// characters wait, and only a known character (not a fallback) lets them out.
void BpeModel::split_symbols(std::string_view piece, std::vector<int32_t>* ids) const {
  int32_t pending = kNoToken;
  for (size_t pos = 0; pos < piece.size();) {
    const size_t begin = pos;
    next_scalar(piece, &pos);
    const std::string_view character = piece.substr(begin, pos - begin);
    const auto first = static_cast<unsigned char>(character[0]);
    const int32_t id = first < 0x80 ? ascii_ids_[first] : vocabulary_.find(character);
    if (id != kNoToken) {
      if (pending != kNoToken) ids->push_back(pending);
      pending = kNoToken;
      ids->push_back(id);
      continue;
    }
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char c) {
          return fallback_ids_[static_cast<unsigned char>(c)] != kNoToken;
        })) {
      for (const char c : character) ids->push_back(fallback_ids_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (options_.unk_id == kNoToken) continue;
    if (pending != kNoToken && !options_.fuse_unk) ids->push_back(pending);
    pending = options_.unk_id;
  }
  if (pending != kNoToken) ids->push_back(pending);
}

// The lowest rank first, the leftmost of equals; found by looking at all pairs.
void BpeModel::merge_short(BpeScratch* s) const {
  std::vector<int32_t>& ids = s->ids;
  size_t n = ids.size();
  if (n < 2) return;
  s->pair.resize(n + 1);
  uint64_t* pair = s->pair.data();
  for (size_t i = 0; i + 1 < n; ++i) pair[i] = find_merge(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pair[i] < pair[best]) best = i;
    }
    if (pair[best] == kNoMerge) break;
    ids[best] = static_cast<int32_t>(pair[best] & 0xffffffffu);
    const size_t behind = n - best - 2;
    std::memmove(ids.data() + best + 1, ids.data() + best + 2, behind * sizeof(int32_t));
    std::memmove(pair + best + 1, pair + best + 2, behind * sizeof(uint64_t));
    --n;
    if (best + 1 < n) pair[best] = find_merge(ids[best], ids[best + 1]);
    if (best > 0) pair[best - 1] = find_merge(ids[best - 1], ids[best]);
  }
  ids.resize(n);
}

// The same with a heap of (rank, position); stale entries are recognised by their rank, which
// belongs to one pair only.
void BpeModel::merge_long(BpeScratch* s) const {
  std::vector<int32_t>& ids = s->ids;
  const auto n = static_cast<int32_t>(ids.size());
  s->next.resize(ids.size());
  s->prev.resize(ids.size());
  s->heap.clear();
  const auto push = [&](int32_t at, bool ordered) {
    const uint64_t merge = find_merge(ids[at], ids[s->next[at]]);
    if (merge == kNoMerge) return;
    s->heap.push_back((merge & 0xffffffff00000000u) | static_cast<uint32_t>(at));
    if (ordered) std::push_heap(s->heap.begin(), s->heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) {
    s->next[i] = i + 1;
    s->prev[i] = i - 1;
  }
  for (int32_t i = 0; i + 1 < n; ++i) push(i, false);
  std::make_heap(s->heap.begin(), s->heap.end(), std::greater<>());
  while (!s->heap.empty()) {
    const uint64_t top = s->heap.front();
    std::pop_heap(s->heap.begin(), s->heap.end(), std::greater<>());
    s->heap.pop_back();
    const auto at = static_cast<int32_t>(top & 0xffffffffu);
    if (ids[at] == kNoToken || s->next[at] >= n) continue;
    const int32_t right = s->next[at];
    const uint64_t merge = find_merge(ids[at], ids[right]);
    if (merge == kNoMerge || merge >> 32 != top >> 32) continue;
    ids[at] = static_cast<int32_t>(merge & 0xffffffffu);
    ids[right] = kNoToken;
    s->next[at] = s->next[right];
    if (s->next[at] < n) {
      s->prev[s->next[at]] = at;
      push(at, true);
    }
    if (s->prev[at] >= 0) push(s->prev[at], true);
  }
  std::erase(ids, kNoToken);
}

void BpeModel::encode_uncached(std::string_view piece, BpeScratch* s,
                               std::vector<int32_t>* out) const {
  s->ids.clear();
  if (options_.byte_level && all_bytes_) {
    if (options_.ignore_merges) {
      if (const int32_t id = raw_.find(piece); id != kNoToken) return out->push_back(id);
    }
    for (const char c : piece) s->ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else {
    if (options_.byte_level) {
      s->text.clear();
      append_byte_level(piece, &s->text);
      piece = s->text;
    }
    if (options_.ignore_merges) {
      if (const int32_t id = vocabulary_.find(piece); id != kNoToken) return out->push_back(id);
    }
    split_symbols(piece, &s->ids);
  }
  if (s->ids.size() <= kShortPiece) {
    merge_short(s);
    out->insert(out->end(), s->ids.begin(), s->ids.end());
    return;
  }
  s->symbols.swap(s->ids);
  const std::vector<int32_t>& symbols = s->symbols;
  for (size_t begin = 0, end = 0; begin < symbols.size(); begin = end) {
    for (end = begin + 1; end < symbols.size() && may_join(symbols[end - 1], symbols[end]);) ++end;
    s->ids.assign(symbols.begin() + static_cast<ptrdiff_t>(begin),
                  symbols.begin() + static_cast<ptrdiff_t>(end));
    if (end - begin <= kShortPiece) {
      merge_short(s);
    } else {
      merge_long(s);
    }
    out->insert(out->end(), s->ids.begin(), s->ids.end());
  }
}

void BpeModel::encode(std::string_view piece, BpeScratch* s, std::vector<int32_t>* out) const {
  if (piece.size() > sizeof(BpeScratch::CacheEntry::key)) return encode_uncached(piece, s, out);
  if (s->cache.empty()) s->cache.resize(kCacheEntries);
  BpeScratch::CacheEntry& entry = s->cache[hash_bytes(piece) & (kCacheEntries - 1)];
  if (entry.length == piece.size() && std::memcmp(entry.key, piece.data(), piece.size()) == 0) {
    out->insert(out->end(), entry.ids, entry.ids + entry.count);
    return;
  }
  const size_t before = out->size();
  encode_uncached(piece, s, out);
  const size_t count = out->size() - before;
  if (count > std::size(entry.ids)) return;
  entry.length = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.key, piece.data(), piece.size());
  std::copy(out->begin() + static_cast<ptrdiff_t>(before), out->end(), entry.ids);
}

}  // namespace sub8
