// Byte-pair encoding: the model of a tokenizer. Time is O(n log n) in the length of one piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace sub8 {

constexpr int32_t kNoToken = -1;

// The printable stand-in of each byte in byte-level vocabularies (bytes 33-126, 161-172 and 174-255
// stand for themselves, the others for U+0100 + n in order), as UTF-8.
void append_byte_level(std::string_view bytes, std::string* out);
// The bytes that `token` stands for; false when it has a character outside the map.
bool decode_byte_level(std::string_view token, std::string* bytes);

// Token strings by id, and ids by string: one arena and an open-addressing table.
class Vocabulary {
 public:
  // Ids need not be dense; `size` is the highest id + 1. Absent ids have an empty string.
  explicit Vocabulary(size_t size = 0) : tokens_(size) {}
  // False when the id or the string is taken already. `token` is copied.
  bool add(int32_t id, std::string_view token);
  int32_t find(std::string_view token) const;
  size_t size() const { return tokens_.size(); }
  size_t count() const { return count_; }
  bool has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[id].present;
  }
  // `has(id)` is required.
  std::string_view token(int32_t id) const {
    return {arena_.data() + tokens_[id].offset, tokens_[id].length};
  }

 private:
  struct Entry {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool present = false;
  };
  void grow();
  std::string arena_;
  std::vector<Entry> tokens_;
  std::vector<std::pair<uint32_t, int32_t>> slots_;  // hash, id
  size_t count_ = 0;
};

struct BpeOptions {
  bool byte_level = false;     // pieces are raw bytes; each byte is its stand-in character
  bool byte_fallback = false;  // unknown characters become <0xXX> tokens where all of them exist
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  bool ignore_merges = false;  // a piece that is a token as it stands is not taken apart
  int32_t unk_id = kNoToken;   // none: unknown characters vanish
};

// Working memory of one thread.
struct BpeScratch {
  struct CacheEntry {
    uint8_t length = 0;
    uint8_t count = 0;
    char key[22] = {};
    int32_t ids[10] = {};
  };
  std::vector<int32_t> symbols;
  std::vector<int32_t> ids;
  std::vector<int32_t> next;
  std::vector<int32_t> prev;
  std::vector<uint64_t> heap;
  std::vector<uint64_t> pair;
  std::string text;
  std::vector<CacheEntry> cache;
};

class BpeModel {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
  };

  BpeModel(Vocabulary vocabulary, BpeOptions options);

  // Adds the merge of the next rank. An error (without place) when the joined token is unknown. Of
  // equal pairs the last one counts.
  Status add_merge(int32_t left, int32_t right);
  // After the last merge.
  void finish();

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }
  const std::vector<Merge>& merges() const { return merges_; }

  // Appends the ids of one piece (not empty; fewer than 2^31 bytes).
  void encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;

 private:
  struct Slot {
    uint64_t key;    // left << 32 | right
    uint64_t value;  // rank << 32 | joined id
  };
  uint64_t find_merge(int32_t left, int32_t right) const;
  void split_symbols(std::string_view piece, std::vector<int32_t>* ids) const;
  void find_joints();
  bool may_join(int32_t left, int32_t right) const {
    const uint64_t h = joint_hash(left, right);
    return joints_.empty() || (joints_[h >> 6] >> (h & 63) & 1) != 0;
  }
  static uint64_t joint_hash(int32_t left, int32_t right) {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    return key * 0x9e3779b97f4a7c15u >> (64 - kJointBits);
  }
  void merge_short(BpeScratch* scratch) const;
  void merge_long(BpeScratch* scratch) const;
  void encode_uncached(std::string_view piece, BpeScratch* scratch,
                       std::vector<int32_t>* out) const;

  static constexpr int kJointBits = 22;
  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<Merge> merges_;
  // A set (hashed, with false positives) of the neighbouring symbols that some merge may join; a
  // long piece is cut wherever none can. Empty: no telling.
  std::vector<uint64_t> joints_;
  int32_t ascii_ids_[128];
  std::vector<Slot> slots_;
  int shift_ = 64;
  Vocabulary raw_;  // byte-level tokens by the bytes they stand for
  int32_t byte_ids_[256];
  int32_t fallback_ids_[256];
  bool all_bytes_ = false;
};

}  // namespace sub8
