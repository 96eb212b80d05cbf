;;;; Endpoints: several members, each a name or a numeric address, are one target of a channel,
;;;; "etcd-endpoints:" and the endpoints with commas between. Its resolver has one for each endpoint
;;;; and tells the channel of all servers that these have found so far. An endpoint that cannot be
;;;; looked up takes nothing away; only if there is none at all it is a failure. With TLS the
;;;; certificate of a server must have the name of its own endpoint.

(in-package #:clgrpc.etcd)

(defclass endpoints-resolver (client:resolver)
  ((parts :initarg :parts :reader endpoints-parts) ; the resolvers, one for each endpoint
   ;; of each of these what it has told: a list of backends, or a text that says why there are none
   (answers :initform '() :accessor endpoints-answers))
  (:documentation "For targets that are several endpoints."))

(defun make-endpoints-resolver (text options)
  "The resolver for TEXT, the target of a channel that has OPTIONS."
  (let ((parts (mapcar (lambda (endpoint) (client:make-resolver endpoint options))
                       (uiop:split-string (loop:address-name text) :separator ","))))
    (make-instance 'endpoints-resolver
                   :target text :name (loop:address-name text) :parts parts
                   :authority (client:resolver-authority (first parts))
                   :host (client:resolver-host (first parts)))))

(loop:register-scheme "etcd-endpoints" :resolver #'make-endpoints-resolver)

(defun take-answer (resolver part backends failure)
  "PART, one of RESOLVER's, has told of BACKENDS or of FAILURE. Tell RESOLVER's channel."
  (setf (getf (endpoints-answers resolver) part)
        (or (mapcar (lambda (backend)
                      (client:backend-with backend :server-name (client:resolver-host part)))
                    backends)
            failure))
  (let* ((answers (loop for (nil answer) on (endpoints-answers resolver) by #'cddr
                        collect answer))
         (all (remove-duplicates (reduce #'append (remove-if-not #'listp answers))
                                 :key #'client:backend-key :test #'string= :from-end t)))
    (cond (all (client:deliver resolver all nil))
          ;; all have answered
          ((= (length answers) (length (endpoints-parts resolver)))
           (client:deliver resolver '() (find-if #'stringp answers))))))

(defmethod client:begin-resolving ((resolver endpoints-resolver))
  (dolist (part (endpoints-parts resolver))
    (let ((part part))
      (client:run-resolver part (client:resolver-loop resolver)
                           (lambda (backends failure service-config)
                             (declare (ignore service-config))
                             (take-answer resolver part backends failure))))))

(defmethod client:resolve-again ((resolver endpoints-resolver))
  (mapc #'client:resolve-again (endpoints-parts resolver)))

(defmethod client:end-resolving ((resolver endpoints-resolver))
  (mapc #'client:quit-resolver (endpoints-parts resolver)))

(defmethod client:answers-p ((resolver endpoints-resolver))
  (some #'client:answers-p (endpoints-parts resolver)))

(defun endpoints-target (endpoints)
  "The target of a channel to ENDPOINTS, a string or a list of strings."
  (let ((endpoints (if (listp endpoints) endpoints (list endpoints))))
    (unless (and endpoints (every (lambda (endpoint)
                                    (and (stringp endpoint) (plusp (length endpoint))))
                                  endpoints))
      (misuse "An endpoint is a string such as \"127.0.0.1:2379\"; there is one at least."))
    (if (rest endpoints)
        (format nil "etcd-endpoints:~{~A~^,~}" endpoints)
        (first endpoints))))
