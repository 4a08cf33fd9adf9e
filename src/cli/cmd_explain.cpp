// tessera explain: what one attention problem means to this build: shapes, contract, chunks, the kernel that takes it,
// why the others do not, and the workspace. Reads no tensor.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option_checks.h"
#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainOptions {
  std::string dtype = "bf16";
  std::string o_dtype;
  std::string layout = "bshd";
  int64_t batch = 1;
  int64_t seqlen_q = 1024;
  int64_t seqlen_k = 1024;
  int32_t num_heads_q = 32;
  int32_t num_heads_kv = 8;
  int32_t head_dim = 128;
  int32_t head_dim_v = 0;
  int32_t page_size = 0;
  int64_t window = 0;
  int32_t threads = 1;
  float softcap = 0;
  bool causal = false;
  bool sinks = false;
  bool alibi = false;
  bool tree_mask = false;
  bool unnormalized = false;
  bool json = false;
  bool v_is_k = false;
  bool budget = false;
  std::string kernel;
  std::string device = "cpu";
};

tessera_dtype dtype_of(const std::string& name) {
  return name == "f32" ? TESSERA_F32 : name == "f16" ? TESSERA_F16 : TESSERA_BF16;
}

// Selection looks at addresses, not behind them: any aligned one serves.
void* present() {
  alignas(64) static char byte;
  return &byte;
}

tessera_tensor tensor(const std::string& layout, int64_t seqlen, int64_t heads, int64_t dim) {
  if (layout == "bhsd") {
    return {present(), heads * seqlen * dim, dim, seqlen * dim, 1};
  }
  return {present(), seqlen * heads * dim, heads * dim, dim, 1};
}

std::string tensor_text(const char* name, const tessera_tensor& t, int64_t batch, int64_t seqlen, int64_t heads,
                        int64_t dim) {
  return fmt::format("{} (batch {}, token {}, head {}, dim {}) : strides ({}, {}, {}, {})", name, batch, seqlen, heads,
                     dim, t.stride_batch, t.stride_token, t.stride_head, t.stride_dim);
}

tessera_fmha_params params_of(const ExplainOptions& o) {
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = dtype_of(o.dtype);
  p.o_dtype = o.o_dtype.empty() ? p.dtype : dtype_of(o.o_dtype);
  p.head_dim_qk = o.head_dim;
  p.head_dim_v = o.head_dim_v == 0 ? o.head_dim : o.head_dim_v;
  p.num_heads_q = o.num_heads_q;
  p.num_heads_kv = o.num_heads_kv;
  p.batch = o.batch;
  p.q = tensor(o.layout, o.seqlen_q, o.num_heads_q, p.head_dim_qk);
  p.seqlen_q = o.seqlen_q;
  p.num_segments = 1;
  tessera_kv_segment& s = p.segments[0];
  s.k = tensor(o.layout, o.seqlen_k, o.num_heads_kv, p.head_dim_qk);
  s.v = tensor(o.layout, o.seqlen_k, o.num_heads_kv, p.head_dim_v);
  s.seqlen_k = o.seqlen_k;
  s.causal = o.causal ? 1 : 0;
  s.window_left = o.window > 0 ? o.window - 1 : -1;
  s.window_right = -1;
  if (o.page_size > 0) {
    const int64_t pages = (o.seqlen_k + o.page_size - 1) / o.page_size;
    s.k = tensor("bshd", o.page_size, o.num_heads_kv, p.head_dim_qk);
    s.v = tensor("bshd", o.page_size, o.num_heads_kv, p.head_dim_v);
    s.page_table = static_cast<const int32_t*>(present());
    s.page_table_stride = pages;
    s.page_size = o.page_size;
    s.num_pages = std::max<int64_t>(1, o.batch * pages);
  }
  if (o.v_is_k) {
    s.v = s.k;
  }
  if (o.tree_mask) {
    const int64_t row = (o.seqlen_q + 7) / 8;
    s.mask = {static_cast<const uint8_t*>(present()), o.seqlen_q * row, 0, row, o.seqlen_q};
  }
  p.softmax_scale = 1.0F / std::sqrt(static_cast<float>(o.head_dim));
  p.softcap = o.softcap;
  p.alibi_slopes = o.alibi ? static_cast<const float*>(present()) : nullptr;
  p.sinks = o.sinks ? static_cast<const float*>(present()) : nullptr;
  p.o = tensor(o.layout, o.seqlen_q, o.num_heads_q, p.head_dim_v);
  if (o.unnormalized) {
    p.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    p.o_dtype = TESSERA_F32;
    p.row_max_log2 = {static_cast<float*>(present()), o.seqlen_q * o.num_heads_q, o.num_heads_q, 1};
    p.row_sum = p.row_max_log2;
  }
  p.force_kernel = o.kernel.empty() ? nullptr : o.kernel.c_str();
  p.device = o.device == "cuda" ? TESSERA_DEVICE_CUDA : TESSERA_DEVICE_CPU;
  return p;
}

// What the kernel of the problem would launch, or nothing if no kernel takes it.
std::string explanation(const tessera_fmha_params& p) {
  size_t length = 0;
  if (tessera_fmha_explain(&p, nullptr, 0, &length, nullptr) != TESSERA_OK) {
    return {};
  }
  std::string text(length + 1, '\0');
  if (tessera_fmha_explain(&p, text.data(), text.size(), &length, nullptr) != TESSERA_OK) {
    return {};
  }
  text.resize(length);
  return text;
}

// The key and the value of every line.
std::vector<std::pair<std::string, std::string>> lines_of(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    lines.emplace_back(line.substr(0, colon), colon == std::string::npos ? "" : line.substr(colon + 2));
  }
  return lines;
}

int explain(const ExplainOptions& o) {
  tessera_fmha_params p = params_of(o);
  tessera_error error;
  const char* kernel = nullptr;
  const tessera_status selected = tessera_fmha_select(&p, &kernel, &error);
  Json j;
  j["rows"] = Json::array();
  j["kernel"] = selected == TESSERA_OK ? Json(kernel) : Json(nullptr);
  if (selected != TESSERA_OK) {
    j["refused"] = error.text;
  }
  const tessera_kv_segment& s = p.segments[0];
  const int64_t rows_k = o.page_size > 0 ? o.page_size : o.seqlen_k;
  const int64_t batch_k = o.page_size > 0 ? s.num_pages : o.batch;
  j["tensors"] = {tensor_text("Q", p.q, o.batch, o.seqlen_q, o.num_heads_q, p.head_dim_qk),
                  tensor_text("K", s.k, batch_k, rows_k, o.num_heads_kv, p.head_dim_qk),
                  tensor_text("V", s.v, batch_k, rows_k, o.num_heads_kv, p.head_dim_v),
                  tensor_text("O", p.o, o.batch, o.seqlen_q, o.num_heads_q, p.head_dim_v)};
  if (selected == TESSERA_OK) {
    char id[128];
    size_t length = 0;
    int64_t chunk = 0;
    size_t bytes = 0;
    if (tessera_fmha_contract_id(&p, id, sizeof(id), &length, &error) != TESSERA_OK ||
        tessera_fmha_chunk_keys(&p, &chunk, &error) != TESSERA_OK ||
        tessera_fmha_workspace_size(&p, o.threads, &bytes, &error) != TESSERA_OK) {
      print_error(error.text);
      return kBadInput;
    }
    j["contract_id"] = id;
    j["chunk_keys"] = chunk;
    j["chunks_per_sequence"] = (o.seqlen_k + chunk - 1) / chunk;
    j["split_boundaries"] = fmt::format("multiples of {} keys; one state per {} keys can be merged alone", chunk,
                                        chunk * kSuperchunkChunks);
    j["workspace_bytes"] = bytes;
  }
  if (const std::string launch = explanation(p); !launch.empty()) {
    j["launch"] = Json::object();
    for (const auto& [key, value] : lines_of(launch)) {
      j["launch"][key] = value;
    }
  }
  // The library's own answer for each row, by forcing it.
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info;
    if (tessera_kernel_get(i, &info, &error) != TESSERA_OK || info.operation != TESSERA_OP_FMHA) {
      continue;
    }
    p.force_kernel = info.name;
    size_t length = 0;
    const tessera_status status = tessera_fmha_explain(&p, nullptr, 0, &length, &error);
    if (status == TESSERA_INVALID_ARGUMENT) {
      continue;  // a kernel of the other device, or a problem that is refused as a whole
    }
    std::string verdict = status == TESSERA_OK ? "takes it" : error.text;
    if (info.available == 0) {
      verdict += fmt::format(" (this machine lacks {})", info.reason);
    }
    j["rows"].push_back({{"name", info.name}, {"verdict", verdict}});
  }
  if (o.json) {
    fmt::print("{}\n", j.dump(2));
    return selected == TESSERA_OK ? kGood : kBadInput;
  }
  for (const Json& t : j["tensors"]) {
    fmt::print("{}\n", t.get<std::string>());
  }
  if (selected == TESSERA_OK) {
    fmt::print(
        "\nkernel      {}\ncontract    {}\nchunks      {} of {} keys per sequence; split at {}\nworkspace   {} bytes "
        "for {} thread{}\n",
        j["kernel"].get<std::string>(), j["contract_id"].get<std::string>(), j["chunks_per_sequence"].get<int64_t>(),
        j["chunk_keys"].get<int64_t>(), j["split_boundaries"].get<std::string>(), j["workspace_bytes"].get<size_t>(),
        o.threads, o.threads == 1 ? "" : "s");
  } else {
    fmt::print("\nno kernel: {}\n", j["refused"].get<std::string>());
  }
  if (j.contains("launch")) {
    fmt::print("\nlaunch\n");
    for (const auto& [key, value] : j["launch"].items()) {
      fmt::print("  {:<24} {}\n", key, value.get<std::string>());
    }
  }
  fmt::print("\nregistry, in order of priority\n");
  for (const Json& r : j["rows"]) {
    fmt::print("  {:<24} {}\n", r["name"].get<std::string>(), r["verdict"].get<std::string>());
  }
  return selected == TESSERA_OK ? kGood : kBadInput;
}

// Shared memory of a block, of every CUDA kernel that says so, per head dim. Where V is in K, for one K/V head only,
// those that take nothing else.
int budget(const ExplainOptions& options) {
  ExplainOptions o = options;
  o.device = "cuda";
  Json rows = Json::array();
  struct Shape {
    int32_t head_dim;
    bool v_is_k;
  };
  std::set<std::pair<int32_t, std::string>> seen;
  for (const auto& [dim, v_is_k] : {Shape{64, false}, Shape{128, false}, Shape{192, false}, Shape{256, false},
                                    Shape{512, false}, Shape{512, true}, Shape{576, true}}) {
    o.head_dim = dim;
    o.head_dim_v = std::min(dim, 512);
    o.v_is_k = v_is_k;
    o.num_heads_kv = v_is_k ? 1 : options.num_heads_kv;
    tessera_fmha_params p = params_of(o);
    for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
      tessera_kernel_info info;
      if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK || info.operation != TESSERA_OP_FMHA) {
        continue;
      }
      p.force_kernel = info.name;
      for (const auto& [key, value] : lines_of(explanation(p))) {
        if (key == "shared memory" && seen.emplace(dim, info.name).second) {
          rows.push_back({{"head_dim", dim}, {"kernel", info.name}, {"shared_memory", value}});
        }
      }
    }
  }
  if (o.json) {
    fmt::print("{}\n", rows.dump(2));
    return kGood;
  }
  fmt::print("shared memory of a block (at most 232448 bytes on sm_90)\n\nhead dim  {:<24} bytes\n", "kernel");
  for (const Json& r : rows) {
    fmt::print("{:>8}  {:<24} {}\n", r["head_dim"].get<int32_t>(), r["kernel"].get<std::string>(),
               r["shared_memory"].get<std::string>());
  }
  return kGood;
}

}  // namespace

void add_explain(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<ExplainOptions>();
  CLI::App* c = app.add_subcommand("explain", "The plan for one attention problem");
  const auto dtypes = CLI::IsMember({"f32", "f16", "bf16"});
  c->add_option("--dtype", o->dtype, "of Q, K, V")->check(dtypes);
  c->add_option("--o-dtype", o->o_dtype, "of O; default: dtype")->check(dtypes);
  c->add_option("--layout", o->layout, "bshd or bhsd")->check(CLI::IsMember({"bshd", "bhsd"}));
  c->add_option("--batch", o->batch, "sequences")->capture_default_str()->check(whole_number<int64_t>(0));
  c->add_option("--seqlen-q", o->seqlen_q, "query tokens of a sequence")
      ->capture_default_str()
      ->check(whole_number<int64_t>(0));
  c->add_option("--seqlen-k", o->seqlen_k, "keys of a sequence")
      ->capture_default_str()
      ->check(whole_number<int64_t>(0));
  c->add_option("--heads-q", o->num_heads_q, "query heads")->capture_default_str()->check(whole_number<int32_t>(1));
  c->add_option("--heads-kv", o->num_heads_kv, "K/V heads; divides --heads-q")
      ->capture_default_str()
      ->check(whole_number<int32_t>(1));
  c->add_option("--head-dim", o->head_dim, "of Q and K, and of V unless given")
      ->capture_default_str()
      ->check(whole_number<int32_t>(1));
  c->add_option("--head-dim-v", o->head_dim_v, "default: head-dim")->check(whole_number<int32_t>(0));
  c->add_flag("--v-is-k", o->v_is_k, "V is the first dims of K's rows");
  c->add_option("--page-size", o->page_size, "paged K/V; 0: contiguous")->check(whole_number<int32_t>(0));
  c->add_option("--window", o->window, "sliding window in keys, the query's own included; 0: none")
      ->check(whole_number<int64_t>(0));
  c->add_option("--softcap", o->softcap, "cap of the scores; 0: off")->check(real_number());
  c->add_option("--threads", o->threads, "CPU threads, for the workspace")->check(whole_number<int32_t>(1, 1024));
  c->add_flag("--causal", o->causal, "aligned to the last key");
  c->add_flag("--sinks", o->sinks, "one more term in the denominator");
  c->add_flag("--alibi", o->alibi, "slopes per head");
  c->add_flag("--tree-mask", o->tree_mask, "custom bits over the last seqlen-q keys");
  c->add_flag("--unnormalized", o->unnormalized, "O un-normalised in fp32, with row max and row sum");
  c->add_option("--device", o->device, "whose memory and kernels: cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  c->add_option("--kernel", o->kernel, "force a registry row");
  c->add_flag("--json", o->json, "one JSON object on stdout");
  c->add_flag("--budget", o->budget, "shared memory of the CUDA kernels per head dim");
  c->callback([o, exit_code] { *exit_code = o->budget ? budget(*o) : explain(*o); });
}

}  // namespace tessera::cli
