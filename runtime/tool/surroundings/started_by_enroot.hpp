#pragma once

namespace spc::tool {

/// The variable that tells `scontainer run` that our command `enroot` started it: hooks of
/// /etc/enroot and of the user run and see the whole environment, the container only HOME,
/// XDG_DATA_HOME, XDG_CONFIG_HOME and TERM.
inline constexpr char kStartedByEnroot[] = "SPANK_CONTAINER_STARTED_BY_ENROOT";

}  // namespace spc::tool
