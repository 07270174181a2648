export default {
  title: "Cluster",
}
