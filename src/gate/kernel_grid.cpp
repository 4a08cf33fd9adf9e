#include <fmt/format.h>

#include <set>

#include "gate/kernel_case.h"
#include "records/canonical_json.h"

namespace tessera {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 20;
constexpr int64_t kMostKeys = int64_t{1} << 20;

void read_case(const Json& j, KernelCase* c) {
  const std::string dtype = j.value("dtype", "f32");
  c->dtype = dtype == "f16" ? TESSERA_F16 : dtype == "bf16" ? TESSERA_BF16 : TESSERA_F32;
  c->name = j.value("name", c->name);
  c->o_f32 = j.value("o_f32", c->o_f32);
  c->head_dim = j.value("head_dim", c->head_dim);
  c->heads_q = j.value("heads_q", c->heads_q);
  c->heads_kv = j.value("heads_kv", c->heads_kv);
  c->batch = j.value("batch", c->batch);
  c->seqlen_q = j.value("seqlen_q", c->seqlen_q);
  c->seqlen_k = j.value("seqlen_k", c->seqlen_k);
  c->causal = j.value("causal", c->causal);
  c->window_left = j.value("window_left", c->window_left);
  c->softcap = j.value("softcap", c->softcap);
  c->sinks = j.value("sinks", c->sinks);
  c->page_size = j.value("page_size", c->page_size);
  c->seed = j.value("seed", c->seed);
}

// What the library itself does not check, because it would already have cost the memory.
bool fits(const KernelCase& c) {
  return c.head_dim >= 1 && c.head_dim <= 1024 && c.heads_q >= 1 && c.heads_q <= 1024 && c.heads_kv >= 1 &&
         c.heads_kv <= c.heads_q && c.heads_q % c.heads_kv == 0 && c.batch >= 1 && c.batch <= kMostRows &&
         c.seqlen_q >= 1 && c.seqlen_q <= kMostRows && c.rows() <= kMostRows * 64 && c.seqlen_k >= c.seqlen_q &&
         c.seqlen_k <= kMostKeys && c.batch * c.seqlen_k <= kMostKeys * 4 && c.page_size >= 0 && c.page_size <= 65536;
}

}  // namespace

Result<std::vector<KernelCase>> parse_grid(const std::string& path, const std::string& text) {
  static const std::set<std::string> known = {"name",     "dtype", "o_f32",  "head_dim",    "heads_q",
                                              "heads_kv", "batch", "causal", "seqlen_q",    "seqlen_k",
                                              "softcap",  "sinks", "seed",   "window_left", "page_size"};
  Result<Json> parsed = parse_json(text, path);
  TESSERA_RETURN_IF_ERROR(parsed.status());
  const Json& j = parsed.value();
  if (!j.is_array() || j.empty()) {
    return Status(Code::kBadFile, fmt::format("{}: got something else; allowed a JSON array of problems", path));
  }
  std::vector<KernelCase> grid;
  for (const Json& item : j) {
    KernelCase c;
    c.name = fmt::format("problem {}", grid.size());
    const auto bad = [&](const std::string& what) {
      return Status(Code::kBadFile, fmt::format("{}: {}: got {}; allowed the problems that docs/gates.md describes",
                                                path, c.name, what));
    };
    if (!item.is_object()) {
      return bad("no object");
    }
    for (const auto& [key, value] : item.items()) {
      if (!known.contains(key)) {
        return bad(fmt::format("the key '{}'", key));
      }
    }
    try {
      read_case(item, &c);
    } catch (const Json::exception& e) {
      return bad(e.what());
    }
    const std::string dtype = item.value("dtype", "f32");
    if (dtype != "f32" && dtype != "f16" && dtype != "bf16") {
      return bad(fmt::format("the dtype '{}'", dtype));
    }
    if (!fits(c)) {
      return bad("a size out of range (heads_kv divides heads_q; 1 <= seqlen_q <= seqlen_k)");
    }
    grid.push_back(std::move(c));
  }
  return grid;
}

}  // namespace tessera
