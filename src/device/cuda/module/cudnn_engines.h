// Convolutions by the engines of cuDNN's graph API. The operation graph is the convolution, alone or with the addition of the
// bias and ReLU behind it; what is between them is virtual.
#pragma once

#include <cudnn.h>

#include "device/cuda/convolution_library.h"

namespace plimsoll::cuda {

class CudnnEngines {
 public:
  // For the handle's GPU; or, to look at what cuDNN has for a GPU that is not there, for what `properties` tells of one
  // (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since cuDNN 9.8): then nothing runs.
  CudnnEngines(cudnnHandle_t handle, cudnnBackendDescriptor_t properties) : handle_(handle), properties_(properties) {}

  // As those of ConvolutionLibrary.
  Answer guess(const Convolution& convolution, bool fused, bool fallback,
               std::vector<EngineConfiguration>& found) const;
  Answer plan(const Convolution& convolution, const EngineConfiguration& configuration,
              std::unique_ptr<ConvolutionLibrary::Planned>& planned) const;
  Answer run(ConvolutionLibrary::Planned& planned, const void* a, const void* b, const void* bias, void* out,
             void* workspace) const;

 private:
  cudnnHandle_t handle_;
  cudnnBackendDescriptor_t properties_;
};

}  // namespace plimsoll::cuda
