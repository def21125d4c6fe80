// GELU, x / 2 (1 + erf(x / sqrt(2))), with the bits of torch's: of oneDNN's eltwise_gelu_erf.
//
// Formulas, their order and their numbers are those of oneDNN 3.12 (Apache License 2.0,
// src/cpu/x64/injectors/jit_uni_eltwise_injector.cpp): polynomials by range where there is AVX-512,
// Abramowitz and Stegun's 7.1.26 where there is not. linear.h compares the bits once in a process.
// setup.py keeps a product and a sum that are no fmadd apart (-ffp-contract=off).

#pragma once

#include <bit>

#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

using Ints = at::vec::Vectorized<int32_t>;

Vec of_bits(uint32_t bits) { return at::vec::cast<float>(Ints(static_cast<int32_t>(bits))); }

#ifdef CPU_CAPABILITY_AVX512

// Coefficients of polynomials in |x|, the constant first: number 1 up to 5/32, each of the next for
// a quarter of an octave, number 23 beyond 5.54, where erf is 1, number 24 for NaN; 0 is never used.
alignas(64) constexpr uint32_t POLYNOMIALS[6][2 * SIZE] = {
    {0xa6f2cb94, 0x32827792, 0x3381cc0c, 0x34523d4a, 0x351ac44d, 0x35f36d88, 0x36ee8229, 0x37b8a3bb,
     0x3867a213, 0x3940033b, 0x3a2a5a1d, 0x3ae35863, 0x3b7828f2, 0x3c08b14b, 0x3c515ed3, 0xbb503236,
     0xbd8d8e5e, 0xbe8abcd9, 0xbf0c19a2, 0xbeccb328, 0x3e176ced, 0x3f470d99, 0x3f7abb28, 0x3f800000,
     0x00000000},
    {0x3f4c422a, 0x3f4c421f, 0x3f4c4207, 0x3f4c41cb, 0x3f4c413b, 0x3f4c3fad, 0x3f4c3a2f, 0x3f4c2d40,
     0x3f4c146a, 0x3f4bc341, 0x3f4ad08c, 0x3f48f8cf, 0x3f45fac7, 0x3f404e07, 0x3f3b980f, 0x3f48dff3,
     0x3f78b21b, 0x3fbb0704, 0x40019c32, 0x3fe536d6, 0x3f81331e, 0x3e6c8684, 0x3c98f936, 0x00000000,
     0x3f800000},
    {0xb62173f4, 0x3735e4cf, 0x37f2ff89, 0x388c23be, 0x3917535c, 0x39ab2ab0, 0x3a60fadb, 0x3af9b960,
     0x3b6e5491, 0x3c0a4ec5, 0x3ca5aa8c, 0x3d2138d9, 0x3d8737d4, 0x3ddfb660, 0x3e0f27ab, 0x3d94004b,
     0xbe0efdeb, 0xbf1d96c3, 0xbf89db58, 0xbf6d9897, 0xbef69fb8, 0xbdc4f8a8, 0xbbde6422, 0x00000000,
     0x00000000},
    {0xbe081a19, 0xbe084570, 0xbe08639b, 0xbe089837, 0xbe08f409, 0xbe09ab95, 0xbe0b66d0, 0xbe0e400a,
     0xbe124df8, 0xbe1bde02, 0xbe2f19c9, 0xbe4931bf, 0xbe685fbc, 0xbe89c95f, 0xbe96cbca, 0xbe8044aa,
     0xbe0550f2, 0x3dcfd6a1, 0x3e94c826, 0x3e79345f, 0x3decec91, 0x3ca46568, 0x3aa1e00a, 0x00000000,
     0x00000000},
    {0xba3d61db, 0x39f097a3, 0x3a5845dc, 0x3ab1fa35, 0x3b0cefb8, 0x3b653ab6, 0x3bcae527, 0x3c221712,
     0x3c6c5840, 0x3cc0a703, 0x3d1dcc19, 0x3d63656d, 0x3d955907, 0x3dbf9910, 0x3dd53f69, 0x3db7dcef,
     0x3d639ebe, 0xba6ede48, 0xbd22be69, 0xbd041cf1, 0xbc64f5ab, 0xbb097a32, 0xb8ebf380, 0x00000000,
     0x00000000},
    {0x3cb7d80c, 0x3c9b6050, 0x3c978d11, 0x3c92e850, 0x3c8d058b, 0x3c848454, 0x3c6cd623, 0x3c4c824b,
     0x3c2a7935, 0x3be0b390, 0x3b0651ac, 0xbb232f53, 0xbbd42fa0, 0xbc2c5366, 0xbc492c9e, 0xbc2a7aa6,
     0xbbd55d04, 0xba823a76, 0x3b102aa8, 0x3ae25a7e, 0x3a31f792, 0x38b84375, 0x3689bb5a, 0x00000000,
     0x00000000},
};

// One coefficient for each lane's polynomial.
Vec pick(const uint32_t* coefficients, const Ints& polynomials) {
  const auto* numbers = reinterpret_cast<const float*>(coefficients);
#if __has_builtin(__builtin_shuffle)  // g++'s, on vectors of any kind; a sixth of the time
  using Floats [[gnu::vector_size(SIZE * sizeof(float))]] = float;
  using Places [[gnu::vector_size(SIZE * sizeof(int32_t))]] = int32_t;
  const auto low = Vec::loadu(numbers), high = Vec::loadu(numbers + SIZE);
  return Vec(__builtin_shuffle(Floats(low), Floats(high), std::bit_cast<Places>(polynomials)));
#else
  return at::vec::gather<sizeof(float)>(numbers, polynomials);
#endif
}

Vec erf_gelu(const Vec& x) {
  const auto size = x.abs();
  const auto quarter = (at::vec::cast<int32_t>(size) + Ints(-0x3de00001)) >> Ints(21);
  const auto within = at::vec::minimum(at::vec::maximum(quarter, Ints(1)), Ints(24));
  const auto polynomials = at::vec::cast<int32_t>(Vec::blendv(
      at::vec::cast<float>(within), at::vec::cast<float>(Ints(23)), size > of_bits(0x40b15cee)));
  auto erf = pick(POLYNOMIALS[5], polynomials);
#pragma GCC unroll 5
  for (int64_t i = 4; i >= 0; --i) {
    erf = at::vec::fmadd(erf, size, pick(POLYNOMIALS[i], polynomials));
  }
  return x * ((erf ^ (x & Vec(-0.0f))) + Vec(1)) * Vec(0.5);
}

#else

// e^x; as oneDNN's eltwise_exp.
Vec exponential(const Vec& x) {
  const auto least = of_bits(0xc2aeac50), most = of_bits(0x42b17218);
  const auto within = at::vec::clamp_min(at::vec::clamp_max(x, most), least);
  const auto octaves = (within * of_bits(0x3fb8aa3b) + Vec(0.5)).floor();
  const auto rest = at::vec::fnmadd(octaves, of_bits(0x3f317218), within);
  const auto shifted = at::vec::convert_to_int_of_same_size(octaves - Vec(1)) + Ints(127);
  const auto power = Vec::blendv(at::vec::cast<float>(shifted << Ints(23)), Vec(0), x < least);
  auto y = of_bits(0x3c07cfce);
  for (const auto each : {0x3d2b9d0du, 0x3e2aad40u, 0x3efffee3u, 0x3f7ffffbu, 0x3f800000u}) {
    y = at::vec::fmadd(y, rest, of_bits(each));
  }
  return y * power * Vec(2);
}

Vec erf_gelu(const Vec& x) {
  const Vec one(1), minus(-0.0f);
  const auto y = x * of_bits(0x3f3504f3);  // x / sqrt(2)
  const auto t = one / at::vec::fmadd(of_bits(0x3ea7ba05), y.abs(), one);
  auto r = of_bits(0x3f87dc22);
  for (const auto each : {0xbfba00e3u, 0x3fb5f0e3u, 0xbe91a98eu, 0x3e827906u}) {
    r = at::vec::fmadd(r, t, of_bits(each));
  }
  const auto less = (exponential((y * y) ^ minus) ^ minus) * t;
  const auto erf = at::vec::fmadd(less, r, one) ^ (x & minus);
  const auto half = x * Vec(0.5);
  return at::vec::fmadd(erf, half, half);
}

#endif

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
