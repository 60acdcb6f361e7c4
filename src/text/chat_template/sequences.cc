// Filters on sequences and mappings, and the table of all filters.
#include <algorithm>
#include <functional>
#include <map>

#include "text/chat_template/filters.h"

namespace sub8::jinja {
namespace {

// Jinja's attribute argument: "a.b.0", an integer, or None.
class Getter {
 public:
  Getter(const Value* attribute, bool ignore_case, const Value* fallback = nullptr)
      : ignore_case_(ignore_case), fallback_(fallback) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_string()) {
      parts_.push_back(*attribute);
      return;
    }
    for (size_t begin = 0; begin <= attribute->str().size();) {
      const size_t dot = std::min(attribute->str().find('.', begin), attribute->str().size());
      const std::string part = attribute->str().substr(begin, dot - begin);
      if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
        const auto index = parse_int(part, 10);
        parts_.emplace_back(index.value_or(0));
      } else {
        auto text = std::make_shared<Text>();
        text->length = count_code_points(part);
        text->bytes = part;
        parts_.emplace_back(std::shared_ptr<const Text>(std::move(text)));
      }
      begin = dot + 1;
    }
  }

  Value operator()(Runtime& rt, Value item) const {
    for (const Value& part : parts_) {
      item = rt.get_item(item, part);
      if (fallback_ != nullptr && !fallback_->is_none() && item.is_undefined()) item = *fallback_;
    }
    if (ignore_case_ && item.is_string()) return rt.string(to_lower(item.str()));
    return item;
  }

 private:
  std::vector<Value> parts_;
  bool ignore_case_;
  const Value* fallback_;
};

// A generator: what `produce` appends; a failure shows only when the walk reaches it.
Value lazily(Runtime& rt, const std::function<void(std::vector<Value>&)>& produce) {
  std::vector<Value> items;
  std::optional<TemplateFailure> failure;
  try {
    produce(items);
  } catch (TemplateFailure& e) {
    if (e.code == ErrorCode::kResourceExhausted) throw;
    failure = std::move(e);
  }
  Value result = rt.iterator(std::move(items));
  if (failure) result.object_as<Iterator>()->fail_at_end(*std::move(failure));
  return result;
}

Value filter_length(Runtime&, const Value& self, Args& args) {
  const Bound bound("length", args, {}, 0);
  const auto length = length_of(self);
  if (!length) fail("length: a '" + type_name(self) + "' has no length");
  return *length;
}

Value filter_list(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("list", args, {}, 0);
  return rt.list(iterate(rt, self));
}

Value filter_join(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("join", args, {"d", "attribute"}, 0);
  const std::string glue = bound.has(0) ? to_str(rt, *bound.at(0)) : "";
  const Getter get(bound.at(1), false);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, self)) {
    if (!first) out += glue;
    first = false;
    out += to_str(rt, get(rt, item));
    rt.check_size(out.size());
  }
  return rt.string(std::move(out));
}

Value filter_first(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("first", args, {}, 0);
  if (auto* iterator = self.object_as<Iterator>()) {
    if (auto item = iterator->next()) return *item;
  } else {
    auto items = iterate(rt, self);
    if (!items.empty()) return items[0];
  }
  return Value::undefined("No first item, sequence was empty");
}

Value filter_last(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("last", args, {}, 0);
  if (self.is_object()) fail("last: a '" + type_name(self) + "' cannot be walked backwards");
  auto items = iterate(rt, self);
  if (items.empty()) return Value::undefined("No last item, sequence was empty");
  return items.back();
}

Value filter_reverse(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("reverse", args, {}, 0);
  auto items = iterate(rt, self);
  std::reverse(items.begin(), items.end());
  if (self.is_object()) return rt.list(std::move(items));  // reversed() needs a length
  if (!self.is_string()) return rt.iterator(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.str();
  return rt.string(std::move(out), self.text().markup);
}

// Stable, and with `reverse` equal elements still keep their order, as Python's sorted().
std::vector<Value> sorted(Runtime& rt, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(rt, b.first, a.first) : less(rt, a.first, b.first);
  });
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (auto& [key, value] : keyed) out.push_back(std::move(value));
  return out;
}

Value filter_sort(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool ignore_case = !bound.flag(1, false);
  std::vector<Getter> getters;
  if (bound.has(2) && bound.at(2)->is_string()) {
    const std::string& all = bound.at(2)->str();
    for (size_t begin = 0; begin <= all.size();) {
      const size_t comma = std::min(all.find(',', begin), all.size());
      const Value part = rt.string(all.substr(begin, comma - begin));
      getters.emplace_back(&part, ignore_case);
      begin = comma + 1;
    }
  } else {
    getters.emplace_back(bound.at(2), ignore_case);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(rt, self)) {
    std::vector<Value> keys;
    keys.reserve(getters.size());
    for (const Getter& get : getters) keys.push_back(get(rt, item));
    keyed.emplace_back(rt.list(std::move(keys)), std::move(item));
  }
  return rt.list(sorted(rt, std::move(keyed), bound.flag(0, false)));
}

Value filter_dictsort(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = bound.string(1, "key");
  if (by != "key" && by != "value") fail("dictsort: 'by' must be \"key\" or \"value\"");
  if (self.is_undefined()) fail(self.undefined_hint());
  if (!self.is_dict()) fail("dictsort: expected a dict, got '" + type_name(self) + "'");
  const Getter get(nullptr, !bound.flag(0, false));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.dict().items) {
    keyed.emplace_back(get(rt, by == "key" ? key : value), rt.tuple({key, value}));
  }
  return rt.list(sorted(rt, std::move(keyed), bound.flag(2, false)));
}

Value filter_unique(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"}, 0);
  const Getter get(bound.at(1), !bound.flag(0, false));
  return lazily(rt, [&](std::vector<Value>& out) {
    std::map<std::string, bool> seen;
    for (const Value& item : iterate(rt, self)) {
      if (seen.emplace(hash_key(rt, get(rt, item)), true).second) out.push_back(item);
    }
  });
}

Value extreme(Runtime& rt, const Value& self, Args& args, std::string_view name, bool smallest) {
  const Bound bound(name, args, {"case_sensitive", "attribute"}, 0);
  const Getter get(bound.at(1), !bound.flag(0, false));
  const auto items = iterate(rt, self);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty");
  Value best = items[0], best_key = get(rt, items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = get(rt, items[i]);
    if (smallest ? less(rt, key, best_key) : less(rt, best_key, key)) {
      best = items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

Value filter_min(Runtime& rt, const Value& self, Args& args) {
  return extreme(rt, self, args, "min", true);
}
Value filter_max(Runtime& rt, const Value& self, Args& args) {
  return extreme(rt, self, args, "max", false);
}

Value filter_sum(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("sum", args, {"attribute", "start"}, 0);
  const Getter get(bound.at(0), false);
  Value total = bound.value(1, int64_t{0});
  if (total.is_string()) fail("sum: cannot add up strings, use join");
  for (const Value& item : iterate(rt, self)) total = add(rt, total, get(rt, item));
  return total;
}

Value filter_items(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("items", args, {}, 0);
  return lazily(rt, [&](std::vector<Value>& out) {
    if (self.is_undefined()) return;
    if (!self.is_dict()) fail("items: expected a dict, got '" + type_name(self) + "'");
    for (const auto& [key, value] : self.dict().items) out.push_back(rt.tuple({key, value}));
  });
}

Value filter_attr(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("attr", args, {"name"}, 1);
  if (self.is_undefined()) fail(self.undefined_hint());
  return rt.plain_attribute(self, bound.string(0, ""));
}

Value filter_map(Runtime& rt, const Value& self, Args& args) {
  return lazily(rt, [&](std::vector<Value>& out) {
    if (!truthy(self)) return;
    if (args.positional.empty()) {
      const Bound bound("map", args, {"attribute", "default"}, 1);
      const Getter get(bound.at(0), false, bound.at(1));
      for (const Value& item : iterate(rt, self)) out.push_back(get(rt, item));
      return;
    }
    const Value name = args.positional[0];
    if (!name.is_string()) fail("map: expected the name of a filter");
    for (const Value& item : iterate(rt, self)) {
      Args rest = args;
      rest.positional.erase(rest.positional.begin());
      out.push_back(rt.filter(name.str(), item, rest));
    }
  });
}

Value choose(Runtime& rt, const Value& self, Args& args, bool keep, bool by_attribute) {
  return lazily(rt, [&](std::vector<Value>& out) {
    if (!truthy(self)) return;
    const size_t offset = by_attribute ? 1 : 0;
    if (args.positional.size() < offset) fail("expected the name of an attribute");
    const Getter get(by_attribute ? &args.positional[0] : nullptr, false);
    const bool has_test = args.positional.size() > offset;
    if (has_test && !args.positional[offset].is_string()) fail("expected the name of a test");
    for (const Value& item : iterate(rt, self)) {
      const Value subject = get(rt, item);
      bool good = false;
      if (has_test) {
        Args rest;
        rest.named = args.named;
        rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(offset) + 1,
                               args.positional.end());
        good = rt.test(args.positional[offset].str(), subject, rest);
      } else {
        good = truthy(subject);
      }
      if (good == keep) out.push_back(item);
    }
  });
}

Value filter_select(Runtime& rt, const Value& self, Args& args) {
  return choose(rt, self, args, true, false);
}
Value filter_reject(Runtime& rt, const Value& self, Args& args) {
  return choose(rt, self, args, false, false);
}
Value filter_selectattr(Runtime& rt, const Value& self, Args& args) {
  return choose(rt, self, args, true, true);
}
Value filter_rejectattr(Runtime& rt, const Value& self, Args& args) {
  return choose(rt, self, args, false, true);
}

Value filter_batch(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("batch", args, {"linecount", "fill_with"}, 1);
  return lazily(rt, [&](std::vector<Value>& out) {
    const int64_t size = bound.integer(0, 0);
    std::vector<Value> row;
    for (const Value& item : iterate(rt, self)) {
      if (static_cast<int64_t>(row.size()) == size) out.push_back(rt.list(std::exchange(row, {})));
      row.push_back(item);
    }
    if (row.empty()) return;
    if (bound.has(1) && !bound.at(1)->is_none() && size > static_cast<int64_t>(row.size())) {
      rt.check_size(static_cast<uint64_t>(size));
      row.resize(static_cast<size_t>(size), *bound.at(1));
    }
    out.push_back(rt.list(std::move(row)));
  });
}

Value filter_slice(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("slice", args, {"slices", "fill_with"}, 1);
  return lazily(rt, [&](std::vector<Value>& out) {
    const int64_t slices = bound.integer(0, 0);
    const auto items = iterate(rt, self);
    if (slices == 0) fail("slice: the number of slices is zero");
    if (slices < 0) return;
    const auto length = static_cast<int64_t>(items.size());
    const int64_t size = length / slices, extra = length % slices;
    auto position = items.begin();
    for (int64_t i = 0; i < slices; ++i) {
      rt.step();
      const auto end = position + size + (i < extra ? 1 : 0);
      std::vector<Value> row(position, end);
      position = end;
      if (bound.has(1) && !bound.at(1)->is_none() && i >= extra) row.push_back(*bound.at(1));
      out.push_back(rt.list(std::move(row)));
    }
  });
}

Value filter_groupby(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const bool ignore_case = !bound.flag(2, false);
  const Getter get(bound.at(0), ignore_case, bound.at(1));
  const Getter real(bound.at(0), false, bound.at(1));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(rt, self)) keyed.emplace_back(get(rt, item), item);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return less(rt, a.first, b.first); });
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members = {keyed[i].second};
    size_t j = i + 1;
    for (; j < keyed.size() && equals(rt, keyed[j].first, keyed[i].first); ++j) {
      members.push_back(keyed[j].second);
    }
    Value key = real(rt, members[0]);
    groups.push_back(rt.list({std::move(key), rt.list(std::move(members))}, SeqKind::kGroup));
    i = j;
  }
  return rt.list(std::move(groups));
}

const std::map<std::string, Native, std::less<>>& filters() {
  static const std::map<std::string, Native, std::less<>> table = {
#define SUB8_JINJA_ENTRY(name) {#name, filter_##name},
      SUB8_JINJA_FILTERS(SUB8_JINJA_ENTRY)
#undef SUB8_JINJA_ENTRY
          {"d", filter_default},
      {"e", filter_escape},
      {"count", filter_length},
      {"length", filter_length},
      {"list", filter_list},
      {"join", filter_join},
      {"first", filter_first},
      {"last", filter_last},
      {"reverse", filter_reverse},
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"unique", filter_unique},
      {"min", filter_min},
      {"max", filter_max},
      {"sum", filter_sum},
      {"items", filter_items},
      {"attr", filter_attr},
      {"map", filter_map},
      {"select", filter_select},
      {"reject", filter_reject},
      {"selectattr", filter_selectattr},
      {"rejectattr", filter_rejectattr},
      {"batch", filter_batch},
      {"slice", filter_slice},
      {"groupby", filter_groupby},
  };
  return table;
}

}  // namespace

Native find_filter(std::string_view name) {
  const auto found = filters().find(name);
  return found == filters().end() ? nullptr : found->second;
}

}  // namespace sub8::jinja
