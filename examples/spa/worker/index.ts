export default {
  fetch(request: Request): Response {
    if (new URL(request.url).pathname === "/api/time") {
      return Response.json({ now: new Date().toISOString() }, { headers: { "Cache-Control": "no-store" } });
    }
    return Response.json({ error: "no such route" }, { status: 404 });
  },
};
