#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

void require(int status, const char* call) {
  if (status != 1) throw Error(ErrorCode::device_failure, fmt::format("OpenSSL: {} failed", call));
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  require(context_->handle != nullptr, "EVP_MD_CTX_new");
  require(EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr), "EVP_DigestInit_ex");
}
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size()), "EVP_DigestUpdate");
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context_->handle, digest, &size), "EVP_DigestFinal_ex");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.hex();
}

}  // namespace plimsoll
