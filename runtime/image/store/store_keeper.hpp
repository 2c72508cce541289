#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// Who gives what is in the store its name and takes it away: in the node's store the agent, whose
/// it all is.
class StoreKeeper {
 public:
  virtual ~StoreKeeper() = default;
  /// In place of what the image had.
  virtual Result<void> publish_record(const Digest& manifest, std::string_view bytes) = 0;
  virtual Result<void> remove_record(const Digest& manifest) = 0;
  /// What a name means (image/reference/named_image.hpp), for everybody or for one user; an empty
  /// text: nothing.
  virtual Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                                std::string_view means) = 0;
};

/// In a store of one's own.
class OwnStoreKeeper final : public StoreKeeper {
 public:
  /// `store` is borrowed.
  explicit OwnStoreKeeper(int store) : store_(store) {}
  Result<void> publish_record(const Digest& manifest, std::string_view bytes) override;
  Result<void> remove_record(const Digest& manifest) override;
  Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                        std::string_view means) override;

 private:
  int store_;
};

}  // namespace spc
