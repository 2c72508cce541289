#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"
#include "launch/host/named_container.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/site/site_importer.hpp"
#include "launch/spec/container_spec.hpp"
#include "protocol/policy.hpp"

namespace spc {

/// The image for the agent.
struct ImageOrder {
  ContainerSpec::From from{};
  std::uint32_t flags = 0;
  Digest manifest;
  Digest image_name;  ///< the key of the name that `import` may write
  std::uint64_t offset = 0;
  UniqueFd file;        ///< an image file, open for reading, for `fuse`; or a directory (O_PATH)
  std::string request;  ///< for `import`, if the image is one for the store
  std::string file_digest;  ///< of a file of a server, without its algorithm
};

/// The name of the step's image, as far as it is known without a registry.
WantedImage wanted_image(const LaunchRequest& request, const ImageLocation& image,
                         const PolicyRecord& policy);

/// From an image, which a named container then keeps, or from the stored container of that name.
struct ImageOrderRequest {
  const LaunchRequest& request;
  const PolicyRecord& policy;
  const SitePolicy& site;
  const std::map<std::string, std::string>& job;  ///< its environment
  const Digest& earlier;                          ///< the image of another task of the step, if any
  NamedStart& named;
  SiteImporter& importer;
  Log& log;
};
Result<ImageOrder> order_image(const ImageOrderRequest& with, ImageLocation image);

}  // namespace spc
