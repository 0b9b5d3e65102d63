// DCGAN (Radford et al. 2016), both networks in one training step. The discriminator judges the real batch and the
// generator's; its loss is the sum of both, the generator's is that the fake ones pass for real. Both gradients are
// taken at the same parameters, before either is updated.
//
//   z -> generator -> fake -> discriminator (same parameters) -> passes for real?  generator_loss
//                                       '-> is fake?  --.
//                     real -> discriminator -> is real? -+-> discriminator_loss
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {
namespace {

// A side is base * 2^doublings: 64 and 32 from 4, 28 from 7, 8 from 4.
struct Sides {
  int64_t base;
  int64_t doublings;
};

Sides sides_of(const ModelInput& input) {
  Sides sides{input.height, 0};
  while (sides.base % 2 == 0 && sides.base >= 8) {
    sides.base /= 2;
    ++sides.doublings;
  }
  if (input.height == input.width && sides.doublings > 0 && sides.base >= 4 && sides.base <= 7) return sides;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format(
          "dcgan makes square images with sides of 4 to 7 times a power of two (8, 10, 12, 14, 16, ..., 28, 32, 64), "
          "not {}x{}",
          input.height, input.width));
}

TensorId generate(Builder& net, TensorId z, Sides sides, int64_t width) {
  int index = 0;
  auto next = [&index] { return fmt::format("generator.main.{}", index++); };
  int64_t channels = width << (sides.doublings - 1);
  TensorId x = net.conv_transpose(next(), z, {.channels = channels, .kernel = sides.base, .bias = false});
  for (int64_t i = 0; i < sides.doublings; ++i) {
    x = net.batch_norm(next(), x);
    x = net.relu(next(), x);
    channels /= 2;
    const bool last = i + 1 == sides.doublings;
    x = net.conv_transpose(
        next(), x,
        {.channels = last ? net.input().channels : channels, .kernel = 4, .stride = 2, .padding = 1, .bias = false});
  }
  return net.tanh(next(), x);
}

TensorId judge(Builder& net, TensorId x, Sides sides, int64_t width) {
  int index = 0;
  auto next = [&index] { return fmt::format("discriminator.main.{}", index++); };
  for (int64_t i = 0; i < sides.doublings; ++i) {
    x = net.conv(next(), x, {.channels = width << i, .kernel = 4, .stride = 2, .padding = 1, .bias = false});
    if (i > 0) x = net.batch_norm(next(), x);
    x = net.leaky_relu(next(), x, 0.2);
  }
  return net.conv(next(), x, {.channels = 1, .kernel = sides.base, .bias = false});
}

}  // namespace

Network build_dcgan(const ModelRequest& request) {
  const Sides sides = sides_of(request.input);
  const int64_t z_size = request.options.integer("z", 100, 1, 1 << 20);
  const int64_t width = request.options.integer("width", 64, 1, 4096);
  Builder net(request.name, request.input, /*has_labels=*/false);
  net.conv_init = {WeightInit::Kind::normal, 0.02};
  net.batch_norm_options.gamma = {Initializer::Kind::normal, 1, 0.02};

  const TensorId fake = generate(net, net.random_normal("z", {request.input.batch, z_size, 1, 1}), sides, width);
  net.apply_as("real", false);
  const TensorId real_logits = judge(net, net.data(), sides, width);
  net.apply_as("fake", true);
  const TensorId fake_logits = judge(net, fake, sides, width);
  net.apply_as("", true);

  const TensorId real_is_real = net.sigmoid_cross_entropy("real_is_real", real_logits, 1);
  const TensorId fake_is_fake = net.sigmoid_cross_entropy("fake_is_fake", fake_logits, 0);
  const TensorId discriminator_loss = net.sum_losses("discriminator_loss", {real_is_real, fake_is_fake});
  const TensorId generator_loss = net.sigmoid_cross_entropy("generator_loss", fake_logits, 1);
  net.add_output(discriminator_loss);
  net.add_output(generator_loss);
  net.add_objective(discriminator_loss, net.parameters("discriminator."));
  net.add_objective(generator_loss, net.parameters("generator."));
  return std::move(net).finish();
}

}  // namespace plimsoll
