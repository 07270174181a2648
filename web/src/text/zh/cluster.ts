export default {
  title: "集群",
}
