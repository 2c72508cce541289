-- Brings the images of waiting jobs into the shared store of spank-container, before there are any nodes: an example for Slurm's plugin
-- burst_buffer/lua (Slurm 21.08 and later). Users write into their job scripts, once for each image:
--
--     #BB_LUA pull nvcr.io/nvidia/pytorch:24.03-py3
--
-- and the job starts when the images are there. If one cannot be brought the job starts anyway, and its nodes pull as usual.
--
-- On the host of slurmctld:
--   1. Install spank-container and config.toml of the nodes, with [shared]; mount the shared store's file system. slurmd is not needed.
--   2. /etc/slurm/burst_buffer.lua: this file. /etc/slurm/burst_buffer.conf: "Directive=BB_LUA" and "StageInTimeout=3600".
--      slurm.conf: "BurstBufferType=burst_buffer/lua".
--   3. slurmctld runs as SlurmUser, and the shared store belongs to the service user. In /etc/sudoers.d/spank-container, in one line:
--      slurm ALL=(spank-container) NOPASSWD: /usr/bin/scontainer pull --quiet --shared -- *
--
-- Public images only: no process of the user is there to show credentials.
--
-- Tested with the lua interpreter and stand-ins for Slurm's functions and sudo (tests/tool), and by hand under slurmctld 22.05, with a
-- stand-in for sudo.

local directive = "#BB_LUA"
local command = "sudo -n -u spank-container scontainer pull --quiet --shared --"

-- Locations that the service user would read on this host in the user's place.
local is_local = {oci = true, ["oci-archive"] = true, ["docker-archive"] = true, dockerd = true, podman = true}
local most_images = 16

-- Image names that need no quoting in a shell. No other text of users reaches one.
local function is_image(name)
  local image = name:gsub("^docker://", "")
  return #image <= 512 and image:match("^[A-Za-z0-9][A-Za-z0-9._:/@-]*$") ~= nil and not image:find(":/", 1, true) and
    not is_local[image:match("^([a-z-]+):") or ""]
end

-- The images that a job script asks for; or nil and what is wrong.
local function images_of(job_script)
  local file, why = io.open(job_script)
  if not file then
    return nil, why
  end
  local images, wrong = {}, nil
  for line in file:lines() do
    local words = {}
    for word in line:gmatch("%S+") do
      words[#words + 1] = word
    end
    if words[1] == directive then
      if words[2] == "pull" and #words == 3 and is_image(words[3]) and #images < most_images then
        images[#images + 1] = words[3]
      else
        local shown = line:sub(1, 100):gsub("[^\32-\126]", "?")
        wrong = wrong or string.format("%s: expected \"%s pull IMAGE\" of a registry, at most %d times", shown, directive, most_images)
      end
    end
  end
  file:close()
  if wrong then
    return nil, wrong
  end
  return images
end

-- At submission, in slurmctld itself: a mistake is told at once.
function slurm_bb_job_process(job_script)
  local images, wrong = images_of(job_script)
  if not images then
    return slurm.ERROR, wrong
  end
  return slurm.SUCCESS
end

-- While the job waits, in a process of its own.
function slurm_bb_data_in(job_id, job_script)
  for _, image in ipairs(images_of(job_script) or {}) do
    local began = os.time()
    local done = os.execute(command .. " " .. image .. " >/dev/null")
    if done == true or done == 0 then
      slurm.log_info("burst_buffer.lua: job %s: image %s is in the shared store after %d s", job_id, image, os.time() - began)
    else
      slurm.log_info("burst_buffer.lua: job %s: image %s could not be brought: its nodes will pull it", job_id, image)
    end
  end
  return slurm.SUCCESS
end

-- There is nothing else to do; Slurm wants all of these.
function slurm_bb_pools() return slurm.SUCCESS end
function slurm_bb_setup() return slurm.SUCCESS end
function slurm_bb_real_size() return slurm.SUCCESS end
function slurm_bb_paths() return slurm.SUCCESS end
function slurm_bb_pre_run() return slurm.SUCCESS end
function slurm_bb_post_run() return slurm.SUCCESS end
function slurm_bb_data_out() return slurm.SUCCESS end
function slurm_bb_job_teardown() return slurm.SUCCESS end
function slurm_bb_get_status() return slurm.SUCCESS, "" end
