export default {
  title: "集群总览",
}
