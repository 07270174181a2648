export default {
  site: "站点",
  where: "所在集群",
  available: "可用",
  repository: "代码仓库",
  branch: "分支",
  defaultBranch: "仓库默认分支",
  deployment: "Deployment",
}
