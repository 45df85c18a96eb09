// What torch asks of a CUDA build before it lets a tensor be on cuda:0: a guard for the device, and
// the hooks by which it finds out that there is one. Nothing is done here, and nothing is launched.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device FIRST(c10::DeviceType::CUDA, 0);
const c10::Stream ONLY(c10::Stream::DEFAULT, FIRST);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return FIRST; }
  c10::Device exchangeDevice(c10::Device) const override { return FIRST; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const noexcept override { return ONLY; }
  c10::Stream getDefaultStream(c10::Device) const override { return ONLY; }
  c10::Stream getNewStream(c10::Device, int) const override { return ONLY; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return ONLY; }
};

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex current_device() const override { return FIRST.index(); }
  at::DeviceIndex deviceCount() const override { return 1; }
};

}  // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}  // namespace c10::impl
