#include "image/reference/advice.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "image/reference/location.hpp"

namespace spc {
namespace {

/// `nvcr.io`, `registry:5000`: what is more likely a registry than an image.
bool looks_like_registry(std::string_view image) {
  const std::string_view name = image.substr(0, image.find(':'));
  if (name.find('.') != std::string_view::npos) return true;
  if (name.size() == image.size()) return false;
  const std::string_view tag = image.substr(name.size() + 1);
  return tag.size() >= 3 && tag.size() <= 5 &&
         std::all_of(tag.begin(), tag.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool has_registry(std::string_view image) {
  const std::string_view first = image.substr(0, image.find('/'));
  return image.find('#') != std::string_view::npos || image.find('@') < image.find('/') ||
         (first.size() < image.size() &&
          (first == "localhost" || first.find_first_of(".:") != std::string_view::npos));
}

/// Of `pull image "REGISTRY/NAME…`.
std::string_view registry_in(std::string_view what) {
  constexpr std::string_view kPull = "pull image \"";
  if (!what.starts_with(kPull)) return {};
  what.remove_prefix(kPull.size());
  const auto slash = what.find('/');
  return slash == std::string_view::npos ? std::string_view() : what.substr(0, slash);
}

}  // namespace

Error advised(Error error, std::string_view image) {
  if (image.starts_with("docker://")) image.remove_prefix(9);
  const bool is_about_name = error.kind() == ErrorKind::not_found ||
                             error.kind() == ErrorKind::refused ||
                             error.kind() == ErrorKind::unavailable;
  const auto location = ImageLocation::parse(image);
  const std::string registry(registry_in(error.what()));
  if (!is_about_name || registry.empty() || !location ||
      location->kind != ImageLocation::Kind::registry || has_registry(image)) {
    return error;
  }
  std::string advice = error.advice() + (error.advice().empty() ? "" : "; ");
  advice += formatted(
      "without a registry in its name an image is of {}, the default: REGISTRY/NAME names another",
      registry);
  if (looks_like_registry(image))
    advice += formatted("; in #SBATCH lines # begins a comment: write {}/NAME, not {}#NAME", image,
                        image);
  return Error(error.kind(), error.what()).hint(advice);
}

}  // namespace spc
