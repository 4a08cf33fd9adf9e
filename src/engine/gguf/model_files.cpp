#include "engine/gguf/model_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/gguf/gguf_error.h"

namespace tessera {
namespace {

constexpr uint64_t kMaxSplits = 65535;  // split.count is a u16

std::string split_suffix(uint64_t no, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", no + 1, count);
}

std::string dims_text(std::span<const int64_t> dims) {
  std::string out = "[";
  for (size_t d = 0; d < dims.size(); ++d) out += (d > 0 ? ", " : "") + fmt::format("{}", dims[d]);
  return out + "]";
}

}  // namespace

Result<ModelFiles> ModelFiles::open(const std::string& path, const ParseOptions& options) {
  Result<GgufFile> head = GgufFile::open(path, options);
  if (!head.ok()) return head.status();
  const Result<uint64_t> count = head.value().get_u64_or("split.count", 1, 0, kMaxSplits);
  if (!count.ok()) return count.status();
  const Result<uint64_t> no = head.value().get_u64_or("split.no", 0, 0, kMaxSplits);
  if (!no.ok()) return no.status();
  if (no.value() != 0) {
    return head.value().key_error(
        "split.no", fmt::format("{}", no.value()), "0 in the file that is opened",
        fmt::format("open the first file of the set, the one that ends in '{}'", split_suffix(0, count.value())));
  }
  ModelFiles model;
  model.files_.push_back(std::move(head).value());
  if (count.value() > 1) TESSERA_RETURN_IF_ERROR(model.open_rest(path, count.value(), options));
  TESSERA_RETURN_IF_ERROR(model.index_tensors());
  return model;
}

Status ModelFiles::open_rest(const std::string& path, uint64_t count, const ParseOptions& options) {
  const std::string first = split_suffix(0, count);
  if (!path.ends_with(first)) {
    return head().key_error("split.count", fmt::format("{} in a file named '{}'", count, path),
                            fmt::format("a name that ends in '{}'", first), "restore the original file names");
  }
  const std::string prefix = path.substr(0, path.size() - first.size());
  for (uint64_t i = 1; i < count; ++i) {
    Result<GgufFile> part = GgufFile::open(prefix + split_suffix(i, count), options);
    if (!part.ok()) return part.status();
    const GgufFile& file = part.value();
    const Result<uint64_t> no = file.get_u64("split.no", 0, kMaxSplits);
    if (!no.ok()) return no.status();
    if (no.value() != i) {
      return file.key_error("split.no", fmt::format("{}", no.value()), fmt::format("{}, as in the file name", i),
                            "fetch the file again");
    }
    const Result<uint64_t> part_count = file.get_u64("split.count", 0, kMaxSplits);
    if (!part_count.ok()) return part_count.status();
    if (part_count.value() != count) {
      return file.key_error("split.count", fmt::format("{}", part_count.value()),
                            fmt::format("{}, as in the first file", count), "fetch all files of one and the same set");
    }
    files_.push_back(std::move(part).value());
  }
  const uint64_t found = [&] {
    uint64_t sum = 0;
    for (const GgufFile& file : files_) sum += file.tensors().size();
    return sum;
  }();
  const Result<uint64_t> total = head().get_u64("split.tensors.count");
  if (!total.ok()) return total.status();
  if (total.value() != found) {
    return head().key_error("split.tensors.count", fmt::format("{}", total.value()),
                            fmt::format("{}, the number of tensors in the {} files", found, count),
                            "fetch all files of one and the same set");
  }
  return {};
}

Status ModelFiles::index_tensors() {
  for (uint32_t f = 0; f < files_.size(); ++f) {
    for (const TensorInfo& tensor : files_[f].tensors()) by_name_.push_back({&tensor, f});
  }
  std::sort(by_name_.begin(), by_name_.end(), [](const Entry& a, const Entry& b) {
    const int cmp = a.tensor->name.compare(b.tensor->name);
    return cmp != 0 ? cmp < 0 : a.file < b.file;
  });
  const auto again = std::adjacent_find(by_name_.begin(), by_name_.end(), [](const Entry& a, const Entry& b) {
    return a.tensor->name == b.tensor->name;
  });
  if (again == by_name_.end()) return {};
  const Entry& second = *(again + 1);
  return gguf_error(Code::kBadFile, files_[second.file].name(), second.tensor->info_offset,
                    fmt::format("tensor '{}'", second.tensor->name),
                    fmt::format("a second occurrence (the first is in {})", files_[again->file].name()),
                    "every tensor in one file of the set", "fetch all files of one and the same set");
}

const ModelFiles::Entry* ModelFiles::find_entry(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.tensor->name < n; });
  return it != by_name_.end() && it->tensor->name == name ? &*it : nullptr;
}

const TensorInfo* ModelFiles::find_tensor(std::string_view name) const {
  const Entry* entry = find_entry(name);
  return entry == nullptr ? nullptr : entry->tensor;
}

Result<const TensorInfo*> ModelFiles::require_tensor(std::string_view name, std::span<const int64_t> dims) const {
  const Entry* entry = find_entry(name);
  if (entry == nullptr) {
    return Status(Code::kBadFile,
                  fmt::format("{}: tensor '{}': got no such tensor; allowed one of shape {}; the file lacks a tensor "
                              "that its architecture needs, convert the model again",
                              head().name(), name, dims_text(dims)));
  }
  const TensorInfo& tensor = *entry->tensor;
  bool equal = dims.size() <= tensor.dims.size();
  for (size_t d = 0; equal && d < tensor.dims.size(); ++d) equal = tensor.dims[d] == (d < dims.size() ? dims[d] : 1);
  if (equal) return entry->tensor;
  return gguf_error(Code::kBadFile, files_[entry->file].name(), tensor.info_offset,
                    fmt::format("shape of tensor '{}'", name), dims_text(std::span(tensor.dims).first(tensor.n_dims)),
                    dims_text(dims), "the tensor disagrees with the file's hyperparameters, convert the model again");
}

void ModelFiles::release_pages(const TensorInfo& tensor) const {
  const Entry* entry = find_entry(tensor.name);
  if (entry != nullptr) files_[entry->file].advise_dontneed(tensor.offset, tensor.nbytes);
}

}  // namespace tessera
