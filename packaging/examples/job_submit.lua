-- /etc/slurm/job_submit.lua: writes the image of a job's container into its accounting record, for
-- sacct --format=JobID,AdminComment. Runs in slurmctld, once a job; needs JobSubmitPlugins=lua in slurm.conf.
--
-- The image is "?" if its name has other characters than those of registries' names, as some paths of files have. The digest is what the image's name stood for at submission. It is known with check_at_submit = true in
-- config.toml, or if the user has written it: NAME@sha256:...
--
-- FIELD: admin_comment, which only administrators can change; comment, which is the user's (then also
-- AccountingStoreFlags=job_comment); or extra (Slurm 23.02 or later, AccountingStoreFlags=job_extra).
local FIELD = "admin_comment"

-- Users can run an srun of their own, so the variables may hold any text. A line end, a bar or a blank in the field would look like
-- another record, column or entry in `sacct -P`, and URLs may have secrets in what is not accepted here.
local MOST = 512
local function plain(text)
    return text and #text <= MOST and text:match("^[A-Za-z0-9._:/@-]+$")
end

local function digest_in(text)
    local hex = text and text:match("^sha256:([0-9a-f]+)$")
    return hex and #hex == 64 and text or nil
end

-- Variables that spank_container has set for Prolog and Epilog: NAME=VALUE.
local function variable(job_desc, name)
    local all = job_desc.spank_job_env
    for i = 0, (job_desc.spank_job_env_size or 0) - 1 do
        local found = all and all[i] and string.match(all[i], "^" .. name .. "=(.*)$")
        if found and found ~= "" then return found end
    end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    local image = variable(job_desc, "SCONTAINER_IMAGE")
    if image then
        local digest = digest_in(variable(job_desc, "SCONTAINER_DIGEST"))
        local text = "container=" .. (plain(image) or "?") .. (digest and " digest=" .. digest or "")
        local before = job_desc[FIELD]
        job_desc[FIELD] = before and before ~= "" and before .. " " .. text or text
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
