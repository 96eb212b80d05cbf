;;;; Lists of registered servers, and service configs in the store.

(in-package #:clgrpc.discovery)

(define-keyword-function list-endpoints (name &key (etcd (default-etcd)) timeout)
  "Return the endpoints that are registered as NAME in ETCD, including draining ones, a list in the
order of their keys. Signal an ETCD-ERROR, and MISUSE without an etcd. From any thread."
  (let ((endpoint-table (make-endpoint-table (check-name name))))
    (etcd:map-entries (lambda (entry) (note-put endpoint-table entry)) (checked-etcd etcd)
                      :prefix (name-prefix name) :timeout timeout)
    (all-endpoints endpoint-table)))

(define-keyword-function put-service-config (name service-config &key (etcd (default-etcd)) timeout)
  "Make the channels to etcd:///NAME use SERVICE-CONFIG, a text in JSON, in place of their own
service configs; if SERVICE-CONFIG is nil, the channels use their own. Signal SERVICE-CONFIG-ERROR
if the config is wrong, an ETCD-ERROR, or MISUSE without an etcd. From any thread."
  (check-type service-config (or null string))
  (checked-etcd etcd)
  (if service-config
      (progn (config:parse-service-config service-config)
             (etcd:put etcd (service-config-key name) service-config :timeout timeout))
      (etcd:remove-entry etcd (service-config-key name) :timeout timeout))
  nil)
