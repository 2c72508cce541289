#pragma once

#include <cmath>

#ifdef __CUDACC__
#define SPC_HOST_DEVICE __host__ __device__
#else
#define SPC_HOST_DEVICE
#endif

namespace spc::bench {

template <typename Real>
struct Body {
  Real x, y, z, mass;
};
template <typename Real>
struct Force {
  Real x = 0, y = 0, z = 0;
};

SPC_HOST_DEVICE inline float inverse_root(float value) {
#ifdef __CUDA_ARCH__
  return rsqrtf(value);
#else
  return 1.0F / std::sqrt(value);
#endif
}
SPC_HOST_DEVICE inline double inverse_root(double value) {
#ifdef __CUDA_ARCH__
  return rsqrt(value);
#else
  return 1.0 / std::sqrt(value);
#endif
}

/// Adds the force of `other` on `body`: gravity with a softened distance. The same source for CPU
/// and GPU.
template <typename Real>
SPC_HOST_DEVICE inline void add_force(Force<Real>& force, const Body<Real>& body,
                                      const Body<Real>& other, Real softening2) {
  const Real dx = other.x - body.x;
  const Real dy = other.y - body.y;
  const Real dz = other.z - body.z;
  const Real inverse = inverse_root(dx * dx + dy * dy + dz * dz + softening2);
  const Real strength = other.mass * inverse * inverse * inverse;
  force.x += dx * strength;
  force.y += dy * strength;
  force.z += dz * strength;
}

/// Returns body `index` of a deterministic cloud: a low-discrepancy sequence in a cube.
template <typename Real>
SPC_HOST_DEVICE inline Body<Real> body_at(unsigned long long index) {
  const auto fraction = [](double value) {
    return value - static_cast<double>(static_cast<unsigned long long>(value));
  };
  const auto i = static_cast<double>(index + 1);
  return {static_cast<Real>(fraction(i * 0.8191725134)),
          static_cast<Real>(fraction(i * 0.6710436067)),
          static_cast<Real>(fraction(i * 0.5497004779)), static_cast<Real>(1.0)};
}

}  // namespace spc::bench
