;;;; Endpoints: members, each a name or a numeric address, form one target of a channel,
;;;; "etcd-endpoints:" followed by the endpoints, separated by commas. The resolver of this target
;;;; has one resolver for each endpoint, and gives the channel all servers that these resolvers have
;;;; found so far. An endpoint whose look-up fails removes no server; the failure is reported only
;;;; if no server is known at all. With TLS the certificate of a server must have the name of its
;;;; own endpoint. Endpoints may be replaced while the channel runs; those that stay keep their
;;;; connections.

(in-package #:clgrpc.etcd)

(defclass endpoints-resolver (client:resolver)
  ((parts :initarg :parts :accessor endpoints-parts) ; the resolvers, one for each endpoint
   (options :initarg :options :reader endpoints-options) ; the options for the channel
   ;; the result of each part: a list of backends, or a text with the reason why there are none
   (answers :initform '() :accessor endpoints-answers))
  (:documentation "The resolver of targets that are endpoints."))

(defvar *resolver-made* nil "If true, MAKE-CHANNEL of these endpoints stores its resolver here;
the caller of MAKE-CHANNEL binds this variable.")

(defun make-endpoints-resolver (text options)
  "The resolver for TEXT, the target of a channel that has OPTIONS."
  (let ((parts (mapcar (lambda (endpoint) (client:make-resolver endpoint options))
                       (uiop:split-string (loop:address-name text) :separator ","))))
    (setf *resolver-made*
          (make-instance 'endpoints-resolver
                         :target text :name (loop:address-name text) :parts parts :options options
                         :authority (client:resolver-authority (first parts))
                         :host (client:resolver-host (first parts))))))

(loop:register-scheme "etcd-endpoints" :resolver #'make-endpoints-resolver)

(defun tell-answers (resolver)
  "Give RESOLVER's channel the servers that its parts have found. On its loop."
  (let* ((answers (loop for (nil answer) on (endpoints-answers resolver) by #'cddr
                        collect answer))
         (all (remove-duplicates (reduce #'append (remove-if-not #'listp answers))
                                 :key #'client:backend-key :test #'string= :from-end t)))
    (cond (all (client:deliver resolver all nil))
          ;; all have answered
          ((= (length answers) (length (endpoints-parts resolver)))
           (client:deliver resolver '() (find-if #'stringp answers))))))

(defun take-answer (resolver part backends failure)
  "Note the result of PART, one of the resolvers of RESOLVER: BACKENDS, or FAILURE, a text."
  (setf (getf (endpoints-answers resolver) part)
        (or (mapcar (lambda (backend)
                      (client:backend-with backend :server-name (client:resolver-host part)))
                    backends)
            failure))
  (tell-answers resolver))

(defun run-part (resolver part)
  (client:run-resolver part (client:resolver-loop resolver)
                       (lambda (backends failure service-config)
                         (declare (ignore service-config))
                         (take-answer resolver part backends failure))))

(defmethod client:begin-resolving ((resolver endpoints-resolver))
  (dolist (part (endpoints-parts resolver)) (run-part resolver part)))

(defun replace-parts (resolver parts)
  "Make PARTS the parts of RESOLVER. A part that RESOLVER already has for the same target remains in
place of the one in PARTS, which is not begun. On its loop."
  (let* ((old (endpoints-parts resolver))
         (kept (loop for part in parts
                     collect (or (find (client:resolver-target part) old
                                       :key #'client:resolver-target :test #'string=)
                                 part))))
    (setf (endpoints-parts resolver) kept)
    (dolist (part (set-difference old kept))
      (client:quit-resolver part)
      (remf (endpoints-answers resolver) part))
    (dolist (part (set-difference kept old)) (run-part resolver part))
    (tell-answers resolver)))

(defun set-endpoints (resolver endpoints)
  "Make ENDPOINTS, a list of strings, the endpoints of RESOLVER. Signal MISUSE if one of ENDPOINTS
is not an endpoint. From any thread."
  (let ((parts (mapcar (lambda (endpoint)
                         (client:make-resolver endpoint (endpoints-options resolver)))
                       endpoints))
        (loop (client:resolver-loop resolver)))
    ;; a resolver that has not begun needs no change
    (when loop (loop:post loop (lambda () (replace-parts resolver parts))))
    nil))

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
      (misuse "Endpoints are a list of at least one string such as \"127.0.0.1:2379\"."))
    (format nil "etcd-endpoints:~{~A~^,~}" endpoints)))
