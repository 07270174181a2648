export default {
  title: "接入集群",
}
