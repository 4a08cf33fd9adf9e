// A call in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/harness.h"

namespace tessera::test {

// A captured call.
class Graph {
 public:
  Graph(const DeviceProblem& device, cudaStream_t stream) {
    tessera_error error{};
    // Global capture refuses every allocation and every wait of any thread: either would end it with an error.
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(device.enqueue(stream, &error), TESSERA_OK) << error.text;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(cudaStream_t stream) const {
    ASSERT_EQ(cudaGraphLaunch(executable_, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  // That the call put something there, and nothing but kernels.
  void expect_kernels_only() const {
    size_t count = 0;
    ASSERT_EQ(cudaGraphGetNodes(graph_, nullptr, &count), cudaSuccess);
    std::vector<cudaGraphNode_t> nodes(count);
    ASSERT_EQ(cudaGraphGetNodes(graph_, nodes.data(), &count), cudaSuccess);
    EXPECT_GE(count, 1U);
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      ASSERT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
      EXPECT_EQ(type, cudaGraphNodeTypeKernel);
    }
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tessera::test
