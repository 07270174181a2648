export default {
  title: "策略",
}
