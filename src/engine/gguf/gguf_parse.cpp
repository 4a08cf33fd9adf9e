// The validating pass over a GGUF file: header, key-value pairs, tensor descriptions, then the extents of the data.
//
// Nothing is allocated in proportion to a count from the file before the bytes that such a count needs are known to be
// there, and no arithmetic on a value from the file can wrap: sizes are compared by subtraction or multiplied checked.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "engine/gguf/cursor.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_error.h"

namespace tessera {
namespace {

// Smallest encodings: a key of one character with a one-byte value, a tensor with a one-character name and one dim.
constexpr uint64_t kMinKvBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;

constexpr std::string_view kDamaged = "the file is damaged or hostile, fetch it again";
constexpr std::string_view kReexport = "export the model again with a current GGUF writer";

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Indices of `items` sorted by name. A sort instead of a hash set: no choice of names makes it worse than
// O(bytes * log n), whereas names can be built to collide in any fixed hash.
template <class Item, class NameOf>
std::vector<uint32_t> sorted_by_name(const std::vector<Item>& items, NameOf name_of) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int cmp = name_of(items[a]).compare(name_of(items[b]));
    return cmp != 0 ? cmp < 0 : a < b;
  });
  return order;
}

// The first item, in file order, whose name occurred before; items.size() if there is none. `earlier` receives that
// earlier occurrence.
template <class Item, class NameOf>
size_t first_duplicate(const std::vector<Item>& items, const std::vector<uint32_t>& order, NameOf name_of,
                       size_t& earlier) {
  size_t found = items.size();
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i] < found && name_of(items[order[i]]) == name_of(items[order[i - 1]])) {
      found = order[i];
      earlier = order[i - 1];
    }
  }
  return found;
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file, const ParseOptions& options)
      : bytes_(bytes), file_(file), options_(options), cursor_(bytes) {}

  Result<GgufContents> run() {
    TESSERA_RETURN_IF_ERROR(header());
    for (uint64_t i = 0; i < n_kv_; ++i) TESSERA_RETURN_IF_ERROR(key_value(i));
    TESSERA_RETURN_IF_ERROR(index_keys());
    TESSERA_RETURN_IF_ERROR(alignment());
    for (uint64_t i = 0; i < n_tensors_; ++i) TESSERA_RETURN_IF_ERROR(tensor_info(i));
    TESSERA_RETURN_IF_ERROR(index_tensors());
    TESSERA_RETURN_IF_ERROR(locate_data());
    return std::move(out_);
  }

 private:
  Status bad(uint64_t offset, std::string_view what, std::string_view got, std::string_view allowed,
             std::string_view todo = kDamaged) const {
    return gguf_error(Code::kBadFile, file_, offset, what, got, allowed, todo);
  }

  Status truncated(std::string_view what, uint64_t wanted) const {
    return bad(cursor_.offset(), what, fmt::format("{} bytes to the end of the file", cursor_.remaining()),
               fmt::format("at least {} bytes", wanted), "the file is truncated, fetch it again");
  }

  // `what` may be a string or a callable that makes one, so that the good path formats nothing.
  template <class T, class What>
  Status read(T& value, const What& what) {
    if (cursor_.read(value)) return {};
    return truncated(what(), sizeof(T));
  }

  // Reads a length-prefixed string of at most `cap` bytes.
  template <class What>
  Status read_string(std::string_view& text, uint64_t cap, const What& what) {
    const uint64_t at = cursor_.offset();
    uint64_t length = 0;
    TESSERA_RETURN_IF_ERROR(read(length, [&] { return "length of " + what(); }));
    if (length > cap) {
      return bad(at, "length of " + what(), fmt::format("{} bytes", length), fmt::format("at most {} bytes", cap));
    }
    std::span<const std::byte> chars;
    if (!cursor_.take(length, chars)) return truncated(what(), length);
    text = {reinterpret_cast<const char*>(chars.data()), chars.size()};
    return {};
  }

  // A name that error sentences and listings can print: 1..cap characters of printable ASCII.
  template <class What>
  Status read_name(std::string_view& text, uint64_t cap, const What& what) {
    const uint64_t at = cursor_.offset();
    TESSERA_RETURN_IF_ERROR(read_string(text, cap, what));
    if (text.empty() || !is_printable(text)) {
      return bad(at, what(), quote(text), fmt::format("1 to {} printable ASCII characters without spaces", cap));
    }
    return {};
  }

  Status header();
  Status version(uint64_t at);
  Status read_count(uint64_t& count, std::string_view what, uint64_t cap);
  Status count_fits(uint64_t at, std::string_view what, uint64_t count, uint64_t min_bytes) const;
  Status key_value(uint64_t index);
  Status scalar(MetaEntry& entry);
  Status array(MetaEntry& entry);
  Status check_bools(const MetaEntry& entry, uint64_t at) const;
  Status index_keys();
  Status alignment();
  Status tensor_info(uint64_t index);
  Status shape(TensorInfo& info);
  Status tensor_type(const TensorInfo& info, uint64_t at, uint32_t id) const;
  Status tensor_size(TensorInfo& info) const;
  Status index_tensors();
  Status locate_data();
  Status place(TensorInfo& info) const;
  Status check_packing() const;
  Status check_overlaps() const;

  std::string value_of(const MetaEntry& e) const { return fmt::format("value of key '{}'", shown_key(e.key)); }
  static std::string shown_key(std::string_view key) { return std::string(key.substr(0, 120)); }
  static std::string tensor(const TensorInfo& info) { return fmt::format("tensor '{}'", info.name); }

  std::span<const std::byte> bytes_;
  std::string_view file_;
  const ParseOptions& options_;
  Cursor cursor_;
  uint64_t n_tensors_ = 0;
  uint64_t n_kv_ = 0;
  std::vector<uint64_t> relative_offsets_;  // per tensor, from the start of the data section, as in the file
  GgufContents out_;
};

Status Parser::header() {
  std::span<const std::byte> magic;
  if (!cursor_.take(4, magic)) return truncated("magic", 4);
  const std::string_view text(reinterpret_cast<const char*>(magic.data()), 4);
  if (text != "GGUF") return bad(0, "magic", quote(text), "\"GGUF\"", "give the path of a GGUF file");
  TESSERA_RETURN_IF_ERROR(version(cursor_.offset()));
  const uint64_t tensors_at = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(read_count(n_tensors_, "tensor count", kMaxTensors));
  const uint64_t kv_at = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(read_count(n_kv_, "key count", kMaxMetaEntries));
  TESSERA_RETURN_IF_ERROR(count_fits(tensors_at, "tensor count", n_tensors_, kMinTensorInfoBytes));
  return count_fits(kv_at, "key count", n_kv_, kMinKvBytes);
}

Status Parser::version(uint64_t at) {
  uint32_t version = 0;
  TESSERA_RETURN_IF_ERROR(read(version, [] { return "version"; }));
  if (version == 2 || version == 3) {
    out_.version = version;
    return {};
  }
  if (version == 0) return bad(at, "version", "0", "2 or 3");
  if ((version & 0xffffU) == 0) {
    return gguf_error(Code::kUnsupported, file_, at, "version", fmt::format("{:#010x}, a big-endian file", version),
                      "2 or 3 in little-endian order", "convert the file to little-endian");
  }
  return gguf_error(Code::kUnsupported, file_, at, "version", fmt::format("{}", version), "2 or 3", kReexport);
}

Status Parser::read_count(uint64_t& count, std::string_view what, uint64_t cap) {
  const uint64_t at = cursor_.offset();
  int64_t value = 0;
  TESSERA_RETURN_IF_ERROR(read(value, [&] { return what; }));
  if (static_cast<uint64_t>(value) > cap) {  // negative counts are beyond any cap
    return bad(at, what, fmt::format("{}", value), fmt::format("0 to {}", cap));
  }
  count = static_cast<uint64_t>(value);
  return {};
}

Status Parser::count_fits(uint64_t at, std::string_view what, uint64_t count, uint64_t min_bytes) const {
  const uint64_t most = cursor_.remaining() / min_bytes;
  if (count <= most) return {};
  return bad(at, what, fmt::format("{}", count),
             fmt::format("at most {}, which is all that {} remaining bytes can hold", most, cursor_.remaining()));
}

Status Parser::key_value(uint64_t index) {
  MetaEntry entry{};
  entry.offset = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(
      read_name(entry.key, kMaxKeyBytes, [&] { return fmt::format("key {} of {}", index + 1, n_kv_); }));
  const uint64_t type_at = cursor_.offset();
  uint32_t type = 0;
  TESSERA_RETURN_IF_ERROR(read(type, [&] { return fmt::format("type of key '{}'", shown_key(entry.key)); }));
  if (type >= kMetaTypeCount) {
    return bad(type_at, fmt::format("type of key '{}'", shown_key(entry.key)), fmt::format("{}", type),
               fmt::format("0 to {}", kMetaTypeCount - 1));
  }
  entry.type = static_cast<MetaType>(type);
  entry.element_type = entry.type;
  entry.count = 1;
  TESSERA_RETURN_IF_ERROR(entry.type == MetaType::Array ? array(entry) : scalar(entry));
  out_.metadata.push_back(entry);
  return {};
}

Status Parser::scalar(MetaEntry& entry) {
  const uint64_t at = cursor_.offset();
  if (entry.type == MetaType::String) {
    std::string_view text;
    TESSERA_RETURN_IF_ERROR(read_string(text, kMaxStringBytes, [&] { return value_of(entry); }));
    entry.payload = std::as_bytes(std::span(text));
    return {};
  }
  const uint32_t size = scalar_bytes(entry.type);
  if (!cursor_.take(size, entry.payload)) return truncated(value_of(entry), size);
  return entry.type == MetaType::Bool ? check_bools(entry, at) : Status{};
}

Status Parser::array(MetaEntry& entry) {
  const auto what = [&] { return fmt::format("array of key '{}'", shown_key(entry.key)); };
  const uint64_t type_at = cursor_.offset();
  uint32_t type = 0;
  TESSERA_RETURN_IF_ERROR(read(type, [&] { return "element type of " + what(); }));
  if (type >= kMetaTypeCount || static_cast<MetaType>(type) == MetaType::Array) {
    return bad(type_at, "element type of " + what(), type >= kMetaTypeCount ? fmt::format("{}", type) : "array",
               fmt::format("0 to {} except 9 (arrays do not nest)", kMetaTypeCount - 1));
  }
  entry.element_type = static_cast<MetaType>(type);
  const uint64_t count_at = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(read(entry.count, [&] { return "element count of " + what(); }));
  if (entry.count > kMaxArrayElements) {
    return bad(count_at, "element count of " + what(), fmt::format("{}", entry.count),
               fmt::format("at most {}", kMaxArrayElements));
  }
  const bool strings = entry.element_type == MetaType::String;
  // A string needs at least its 8-byte length. The count is capped, so the product cannot wrap.
  const uint64_t least = entry.count * (strings ? 8 : scalar_bytes(entry.element_type));
  const uint64_t at = cursor_.offset();
  if (least > cursor_.remaining()) return truncated(fmt::format("{} of {} elements", what(), entry.count), least);
  if (!strings) {
    if (!cursor_.take(least, entry.payload)) return truncated(what(), least);
    return entry.element_type == MetaType::Bool ? check_bools(entry, at) : Status{};
  }
  for (uint64_t i = 0; i < entry.count; ++i) {
    std::string_view text;
    TESSERA_RETURN_IF_ERROR(
        read_string(text, kMaxStringBytes, [&] { return fmt::format("element {} of {}", i, what()); }));
  }
  entry.payload = bytes_.subspan(static_cast<size_t>(at), static_cast<size_t>(cursor_.offset() - at));
  return {};
}

Status Parser::check_bools(const MetaEntry& entry, uint64_t at) const {
  for (size_t i = 0; i < entry.payload.size(); ++i) {
    if (entry.payload[i] > std::byte{1}) {
      return bad(at + i, value_of(entry), fmt::format("bool {}", std::to_integer<int>(entry.payload[i])), "0 or 1");
    }
  }
  return {};
}

Status Parser::index_keys() {
  const auto key_of = [](const MetaEntry& e) { return e.key; };
  out_.by_key = sorted_by_name(out_.metadata, key_of);
  size_t earlier = 0;
  const size_t again = first_duplicate(out_.metadata, out_.by_key, key_of, earlier);
  if (again == out_.metadata.size()) return {};
  const MetaEntry& entry = out_.metadata[again];
  return bad(entry.offset, fmt::format("key '{}'", shown_key(entry.key)),
             fmt::format("a second occurrence (the first is at byte {})", out_.metadata[earlier].offset),
             "every key once");
}

Status Parser::alignment() {
  const auto it = std::find_if(out_.metadata.begin(), out_.metadata.end(),
                               [](const MetaEntry& e) { return e.key == "general.alignment"; });
  if (it == out_.metadata.end()) return {};
  const std::string allowed = fmt::format("a u32 power of two from {} to {}", kMinAlignment, kMaxAlignment);
  if (it->type != MetaType::U32) {
    return bad(it->offset, "key 'general.alignment'", describe_type(*it), allowed, kReexport);
  }
  const auto value = load_le<uint32_t>(it->payload.data());
  if (!std::has_single_bit(value) || value < kMinAlignment || value > kMaxAlignment) {
    return bad(it->offset, "key 'general.alignment'", fmt::format("{}", value), allowed, kReexport);
  }
  out_.alignment = value;
  return {};
}

Status Parser::tensor_info(uint64_t index) {
  TensorInfo info{};
  info.info_offset = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(read_name(info.name, kMaxTensorNameBytes,
                                    [&] { return fmt::format("name of tensor {} of {}", index + 1, n_tensors_); }));
  TESSERA_RETURN_IF_ERROR(shape(info));
  const uint64_t type_at = cursor_.offset();
  uint32_t type = 0;
  TESSERA_RETURN_IF_ERROR(read(type, [&] { return "type of " + tensor(info); }));
  TESSERA_RETURN_IF_ERROR(tensor_type(info, type_at, type));
  info.type = static_cast<TensorType>(type);
  TESSERA_RETURN_IF_ERROR(tensor_size(info));
  uint64_t relative = 0;
  TESSERA_RETURN_IF_ERROR(read(relative, [&] { return "offset of " + tensor(info); }));
  relative_offsets_.push_back(relative);
  out_.tensors.push_back(info);
  return {};
}

Status Parser::shape(TensorInfo& info) {
  const uint64_t at = cursor_.offset();
  TESSERA_RETURN_IF_ERROR(read(info.n_dims, [&] { return "dimension count of " + tensor(info); }));
  if (info.n_dims < 1 || info.n_dims > kMaxDims) {
    return bad(at, "dimension count of " + tensor(info), fmt::format("{}", info.n_dims),
               fmt::format("1 to {}", kMaxDims));
  }
  info.dims = {1, 1, 1, 1};
  int64_t elements = 1;
  for (uint32_t d = 0; d < info.n_dims; ++d) {
    const uint64_t dim_at = cursor_.offset();
    const auto what = [&] { return fmt::format("dimension {} of {}", d, tensor(info)); };
    TESSERA_RETURN_IF_ERROR(read(info.dims[d], what));
    if (info.dims[d] < 1) return bad(dim_at, what(), fmt::format("{}", info.dims[d]), "at least 1");
    if (__builtin_mul_overflow(elements, info.dims[d], &elements)) {
      return bad(dim_at, what(), fmt::format("{}, which makes more than 2^63 - 1 elements", info.dims[d]),
                 "shapes whose element count fits 63 bits");
    }
  }
  return {};
}

Status Parser::tensor_type(const TensorInfo& info, uint64_t at, uint32_t id) const {
  if (is_supported_tensor_type(id)) return {};
  const std::string what = "type of " + tensor(info);
  const std::string_view name = tensor_type_name(id);
  constexpr std::string_view kAllowed = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";
  if (name.empty()) return bad(at, what, fmt::format("{}, an unknown id", id), kAllowed);
  if (name == "removed") {
    return gguf_error(Code::kUnsupported, file_, at, what, fmt::format("{}, an id removed from the format", id),
                      kAllowed, kReexport);
  }
  return gguf_error(Code::kUnsupported, file_, at, what, fmt::format("{} ({})", id, name), kAllowed,
                    "quantize the model to one of these types");
}

Status Parser::tensor_size(TensorInfo& info) const {
  const uint64_t block = block_elements(info.type);
  if (static_cast<uint64_t>(info.dims[0]) % block != 0) {
    return bad(info.info_offset, "dimension 0 of " + tensor(info), fmt::format("{}", info.dims[0]),
               fmt::format("a multiple of {} for {}", block, type_name(info.type)));
  }
  const uint64_t blocks = static_cast<uint64_t>(info.n_elements()) / block;
  if (__builtin_mul_overflow(blocks, uint64_t{block_bytes(info.type)}, &info.nbytes) || info.nbytes > bytes_.size()) {
    return bad(info.info_offset, "size of " + tensor(info),
               fmt::format("{} elements of {}", info.n_elements(), type_name(info.type)),
               fmt::format("what fits the file of {} bytes", bytes_.size()));
  }
  return {};
}

Status Parser::index_tensors() {
  const auto name_of = [](const TensorInfo& t) { return t.name; };
  out_.by_tensor_name = sorted_by_name(out_.tensors, name_of);
  size_t earlier = 0;
  const size_t again = first_duplicate(out_.tensors, out_.by_tensor_name, name_of, earlier);
  if (again == out_.tensors.size()) return {};
  const TensorInfo& info = out_.tensors[again];
  return bad(info.info_offset, tensor(info),
             fmt::format("a second occurrence (the first is at byte {})", out_.tensors[earlier].info_offset),
             "every tensor name once");
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

Status Parser::locate_data() {
  // offset() <= file size < 2^63 and the alignment is small: no wrap.
  out_.data_offset = align_up(cursor_.offset(), out_.alignment);
  if (!out_.tensors.empty() && out_.data_offset > bytes_.size()) {
    return bad(cursor_.offset(), "data section", fmt::format("the end of the file at byte {}", bytes_.size()),
               fmt::format("a section that starts at byte {}", out_.data_offset),
               "the file is truncated, fetch it again");
  }
  for (size_t i = 0; i < out_.tensors.size(); ++i) {
    out_.tensors[i].offset = relative_offsets_[i];
    TESSERA_RETURN_IF_ERROR(place(out_.tensors[i]));
  }
  return options_.allow_gaps ? check_overlaps() : check_packing();
}

// Turns the offset within the data section into one within the file.
Status Parser::place(TensorInfo& info) const {
  const uint64_t relative = info.offset;
  if (relative % out_.alignment != 0) {
    return bad(info.info_offset, "offset of " + tensor(info), fmt::format("{}", relative),
               fmt::format("a multiple of the alignment {}", out_.alignment));
  }
  const uint64_t section = bytes_.size() - out_.data_offset;
  if (relative > section || info.nbytes > section - relative) {
    return bad(info.info_offset, "data of " + tensor(info),
               fmt::format("{} bytes at data offset {}", info.nbytes, relative),
               fmt::format("extents inside the {} bytes of the data section", section),
               "the file is truncated or damaged, fetch it again");
  }
  info.offset = out_.data_offset + relative;
  info.data = bytes_.subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.nbytes));
  return {};
}

Status Parser::check_packing() const {
  uint64_t end = std::min<uint64_t>(out_.data_offset, bytes_.size());
  uint64_t next = out_.data_offset;
  for (const TensorInfo& info : out_.tensors) {
    if (info.offset != next) {
      return bad(
          info.info_offset, "offset of " + tensor(info),
          fmt::format("{}, which {}", info.offset - out_.data_offset,
                      info.offset < next ? "overlaps or precedes the tensor before it"
                                         : "leaves a gap after the tensor before it"),
          fmt::format("exactly {} (tensors are packed in the order of their descriptions)", next - out_.data_offset),
          kReexport);
    }
    end = info.offset + info.nbytes;
    next = align_up(end, out_.alignment);
  }
  if (bytes_.size() > next) {
    return bad(end, "end of the tensor data", fmt::format("{} bytes after it", bytes_.size() - end),
               fmt::format("at most {} bytes of padding", next - end));
  }
  return {};
}

Status Parser::check_overlaps() const {
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(out_.tensors.size());
  for (const TensorInfo& info : out_.tensors) by_offset.push_back(&info);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = *by_offset[i - 1];
    const TensorInfo& info = *by_offset[i];
    if (info.offset - before.offset < before.nbytes) {
      return bad(info.info_offset, "data of " + tensor(info),
                 fmt::format("bytes {} to {}", info.offset, info.offset + info.nbytes),
                 fmt::format("extents that do not overlap {} (bytes {} to {})", tensor(before), before.offset,
                             before.offset + before.nbytes));
    }
  }
  return {};
}

}  // namespace

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view name, const ParseOptions& options) {
  return Parser(bytes, name, options).run();
}

}  // namespace tessera
