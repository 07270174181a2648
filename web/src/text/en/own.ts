export default {
  site: "Site",
  where: "In which clusters",
  available: "Available",
  repository: "Repository",
  branch: "Branch",
  defaultBranch: "the repository's default",
  deployment: "Deployment",
}
