export default {
  title: "Object",
}
