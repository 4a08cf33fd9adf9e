#include "engine/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "engine/gguf/dequant.h"

namespace tessera {
namespace {

constexpr int64_t kRowsPerTask = 256;  // a multiple of the packing group of 16
constexpr size_t kPackedAlignment = 64;

std::string shape_text(const TensorInfo& t) {
  std::string s = fmt::format("[{}", t.dims[0]);
  for (uint32_t i = 1; i < t.n_dims; ++i) {
    s += fmt::format(", {}", t.dims[i]);
  }
  return s + "]";
}

class Loader {
 public:
  Loader(const ModelFiles& files, const ModelConfig& config, ThreadPool& pool, const LoadProgress& progress)
      : files_(files), c_(config), pool_(pool), progress_(progress) {}

  Status load(Weights* w) {
    TESSERA_RETURN_IF_ERROR(declare(w));
    TESSERA_RETURN_IF_ERROR(refuse_unknown_tensors());
    size_t bytes = 0;
    for (Pending& p : pending_) {
      p.offset = bytes;
      size_t size = 0;
      tessera_error error;
      if (tessera_gemm_packed_size(p.matrix->type, p.matrix->n, p.matrix->k, &size, &error) != TESSERA_OK) {
        return Status(static_cast<Code>(error.code),
                      fmt::format("{}: tensor {}: {}", files_.head().name(), p.info->name, error.text));
      }
      p.packed_bytes = size;
      bytes += (size + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
      total_ += p.info->nbytes;
    }
    Result<AlignedBuffer> arena = AlignedBuffer::allocate(bytes, "weights", true);
    TESSERA_RETURN_IF_ERROR(arena.status());
    w->arena = std::move(arena).value();
    for (const Pending& p : pending_) {
      TESSERA_RETURN_IF_ERROR(pack(p, w->arena.data() + p.offset));
    }
    if (w->tied) {
      w->output = w->token_embd;
    }
    return {};
  }

 private:
  struct Pending {
    Matrix* matrix;
    const TensorInfo* info;
    size_t offset;
    size_t packed_bytes;
  };

  // Which tensors the architecture has, with their shapes: matrices are noted for packing, vectors are read at once.
  Status declare(Weights* w) {
    TESSERA_RETURN_IF_ERROR(matrix("token_embd.weight", c_.vocab_size, c_.hidden, &w->token_embd));
    TESSERA_RETURN_IF_ERROR(vector("output_norm.weight", c_.hidden, &w->output_norm));
    w->tied = files_.find_tensor("output.weight") == nullptr;
    if (!w->tied) {
      TESSERA_RETURN_IF_ERROR(matrix("output.weight", c_.vocab_size, c_.hidden, &w->output));
    }
    if (files_.find_tensor("rope_freqs.weight") != nullptr) {
      TESSERA_RETURN_IF_ERROR(vector("rope_freqs.weight", c_.rotary_dim / 2, &w->rope_factors));
      for (const float f : w->rope_factors) {
        if (!(f > 0.0F && f < 1e30F)) {
          return Status(Code::kBadFile, fmt::format("{}: tensor rope_freqs.weight: got {}; allowed positive finite "
                                                    "divisors; use a valid model file",
                                                    files_.head().name(), f));
        }
      }
    }
    w->layers.resize(static_cast<size_t>(c_.n_layers));
    for (size_t i = 0; i < w->layers.size(); ++i) {
      LayerWeights& l = w->layers[i];
      const std::string p = fmt::format("blk.{}.", i);
      TESSERA_RETURN_IF_ERROR(vector(p + "attn_norm.weight", c_.hidden, &l.attn_norm));
      TESSERA_RETURN_IF_ERROR(matrix(p + "attn_q.weight", c_.q_dim(), c_.hidden, &l.q));
      TESSERA_RETURN_IF_ERROR(matrix(p + "attn_k.weight", c_.kv_dim(), c_.hidden, &l.k));
      TESSERA_RETURN_IF_ERROR(matrix(p + "attn_v.weight", c_.kv_dim(), c_.hidden, &l.v));
      if (c_.qkv_bias) {
        TESSERA_RETURN_IF_ERROR(vector(p + "attn_q.bias", c_.q_dim(), &l.q_bias));
        TESSERA_RETURN_IF_ERROR(vector(p + "attn_k.bias", c_.kv_dim(), &l.k_bias));
        TESSERA_RETURN_IF_ERROR(vector(p + "attn_v.bias", c_.kv_dim(), &l.v_bias));
      }
      if (c_.qk_norm) {
        TESSERA_RETURN_IF_ERROR(vector(p + "attn_q_norm.weight", c_.head_dim, &l.q_norm));
        TESSERA_RETURN_IF_ERROR(vector(p + "attn_k_norm.weight", c_.head_dim, &l.k_norm));
      }
      TESSERA_RETURN_IF_ERROR(matrix(p + "attn_output.weight", c_.hidden, c_.q_dim(), &l.attn_out));
      TESSERA_RETURN_IF_ERROR(vector(p + "ffn_norm.weight", c_.hidden, &l.ffn_norm));
      TESSERA_RETURN_IF_ERROR(matrix(p + "ffn_gate.weight", c_.ffn, c_.hidden, &l.gate));
      TESSERA_RETURN_IF_ERROR(matrix(p + "ffn_up.weight", c_.ffn, c_.hidden, &l.up));
      TESSERA_RETURN_IF_ERROR(matrix(p + "ffn_down.weight", c_.hidden, c_.ffn, &l.down));
    }
    return {};
  }

  Result<const TensorInfo*> find(const std::string& name, int64_t dim0, int64_t dim1) {
    const TensorInfo* t = files_.find_tensor(name);
    if (t == nullptr) {
      return Status(Code::kBadFile, fmt::format("{}: tensor {} is missing; use a complete {} model file",
                                                files_.head().name(), name, c_.arch_name));
    }
    if (t->dims[0] != dim0 || t->dims[1] != dim1 || t->dims[2] != 1 || t->dims[3] != 1) {
      return Status(Code::kBadFile, fmt::format("{}: tensor {} at offset {}: got shape {}; allowed [{}, {}], from the "
                                                "file's own hyperparameters; use a valid model file",
                                                files_.head().name(), name, t->offset, shape_text(*t), dim0, dim1));
    }
    used_.insert(t->name);
    return t;
  }

  Status matrix(const std::string& name, int64_t n, int64_t k, Matrix* out) {
    Result<const TensorInfo*> t = find(name, k, n);
    TESSERA_RETURN_IF_ERROR(t.status());
    // GGUF's type numbers are those of tessera_weight_type; the reader has refused all others.
    *out = Matrix{static_cast<tessera_weight_type>(t.value()->type), n, k, nullptr};
    pending_.push_back({out, t.value(), 0, 0});
    return {};
  }

  Status vector(const std::string& name, int64_t n, Vector* out) {
    Result<const TensorInfo*> t = find(name, n, 1);
    TESSERA_RETURN_IF_ERROR(t.status());
    out->resize(static_cast<size_t>(n));
    const Status s = dequantize_row(t.value()->type, t.value()->data.data(), out->data(), n);
    if (!s.ok()) {
      return Status(s.code(), fmt::format("{}: tensor {}: {}", files_.head().name(), name, s.text()));
    }
    return {};
  }

  // An unknown tensor means arithmetic that this engine would silently leave out.
  Status refuse_unknown_tensors() const {
    for (const GgufFile& file : files_.files()) {
      for (const TensorInfo& t : file.tensors()) {
        if (used_.contains(t.name)) {
          continue;
        }
        return Status(
            Code::kUnsupported,
            fmt::format("{}: tensor {} at offset {}: not part of architecture {} as Tessera computes it; use a "
                        "model without it",
                        file.name(), quote(t.name), t.info_offset, c_.arch_name));
      }
    }
    return {};
  }

  Status pack(const Pending& p, std::byte* packed) {
    struct Job {
      const Pending* p;
      std::byte* packed;
      std::mutex mutex;
      Status status;
    } job{&p, packed, {}, {}};
    const int64_t n = p.matrix->n;
    pool_.parallel_for((n + kRowsPerTask - 1) / kRowsPerTask,
                       [](void* arg, int64_t index, int32_t) {
                         Job& j = *static_cast<Job*>(arg);
                         const int64_t begin = index * kRowsPerTask;
                         const int64_t end = std::min(begin + kRowsPerTask, j.p->matrix->n);
                         const uint64_t row_bytes = j.p->info->row_bytes();
                         const uint64_t first = static_cast<uint64_t>(begin) * row_bytes;
                         const uint64_t bytes = static_cast<uint64_t>(end - begin) * row_bytes;
                         tessera_error error;
                         const tessera_status s = tessera_gemm_pack(j.p->matrix->type, j.p->matrix->n, j.p->matrix->k,
                                                                    begin, end, j.p->info->data.data() + first, bytes,
                                                                    j.packed, j.p->packed_bytes, &error);
                         if (s != TESSERA_OK) {
                           const std::scoped_lock lock(j.mutex);
                           j.status =
                               Status(static_cast<Code>(s), fmt::format("tensor {}: {}", j.p->info->name, error.text));
                         }
                       },
                       &job);
    TESSERA_RETURN_IF_ERROR(job.status);
    p.matrix->packed = packed;
    files_.release_pages(*p.info);
    done_ += p.info->nbytes;
    if (progress_) {
      progress_(done_, total_);
    }
    return {};
  }

  const ModelFiles& files_;
  const ModelConfig& c_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  std::vector<Pending> pending_;
  std::unordered_set<std::string_view> used_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

Result<Weights> load_weights(const ModelFiles& files, const ModelConfig& config, ThreadPool& pool,
                             const LoadProgress& progress) {
  Weights w;
  Loader loader(files, config, pool, progress);
  TESSERA_RETURN_IF_ERROR(loader.load(&w));
  return w;
}

}  // namespace tessera
