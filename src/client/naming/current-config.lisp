;;;; The service config in force, as the calls of a channel see it (gRFC A21; service_config.proto).
;;;; It is the resolver's, or if that gives none the channel's default. Until the resolver's first
;;;; answer there is none; the calls that wait for that take it then.
;;;;
;;;; What it says of a method is looked up once and remembered. A channel whose config says nothing
;;;; of methods has no METHOD-TABLE, and its calls look no further.

(in-package #:clgrpc.client)

(defconstant +remembered-methods+ 64
  "So many methods a table remembers; others are looked up by name each time.")

(defun lookup-method (table method)
  "The METHOD-CONFIG of METHOD, which TABLE is to remember, or nil. From any thread."
  (let ((config (config:find-method-config (method-table-config table) (rpc-method-path method))))
    (when (< (length (method-table-found table)) +remembered-methods+)
      (sb-ext:atomic-push (cons method config) (method-table-found table)))
    config))

(define-hot table-method-config ((table method-table) (method rpc-method))
    (or null config:method-config)
  "What TABLE says of METHOD, or nil. From any thread."
  (let ((found (assoc method (method-table-found table) :test #'eq)))
    (if found
        (cdr found)
        (lookup-method table method))))

(define-hot method-config-of ((call client-call)) (or null config:method-config)
  "What the service config in force says of CALL's method, or nil. From any thread."
  (let ((table (core-methods (client-call-core call))))
    (and table (table-method-config table (the rpc-method (call-rpc-method call))))))

;;; What it says

(defun client-call-wait-for-ready (call)
  "True if CALL outlasts failures to connect: since its user says so, or says nothing and the config
does."
  (let ((said (rpc:wait-for-ready call)))
    (if (eq :unset said)
        (let ((config (method-config-of call)))
          (and config (eq t (config:method-config-wait-for-ready config))))
        said)))

(defun limit-time (call)
  "CALL, which has begun, takes no longer than the service config allows. True if its deadline is
another now."
  (let* ((config (method-config-of call))
         (timeout-ns (and config (config:method-config-timeout-ns config))))
    (and timeout-ns
         (wire:shorten-deadline call (status:deadline-in timeout-ns
                                                         (client-call-born-ns call))))))

(defun call-limits (call)
  "How long requests of CALL may be, and responses: what both the user and the service config allow,
and where only one of them says what that one does. What the user says for CALL counts, if nothing
what the user says for the channel."
  (let* ((core (client-call-core call))
         (config (method-config-of call)))
    (multiple-value-bind (own-send own-receive) (rpc:own-limits call)
      (flet ((smaller (limit configured)
               (if configured (min limit configured) limit)))
        (let* ((table (core-methods core))
               (options (core-options core))
               (configured (and config (config:method-config-max-response-octets config)))
               (given (or own-receive (and table (method-table-receive-limit table)))))
          (values (smaller (or own-send (options-max-send-octets options))
                           (and config (config:method-config-max-request-octets config)))
                  (if (and configured (null given))
                      configured
                      (smaller (or own-receive (options-max-receive-octets options))
                               configured))))))))

(defun refuse-long-request (call request)
  "End CALL if what it is about to send, its only REQUEST if that is not nil, is longer than it may
be now that the service config is known; true if it was."
  (let ((limit (values (call-limits call)))
        (size (longest-outgoing call (or request (client-call-request call)))))
    (when (> size limit)
      (multiple-value-bind (status text) (rpc:verdict :too-long-to-send size limit)
        (end-client-call call status text :ended-by :local :sent nil))
      t)))

;;; Which one it is

(defconstant +told-config+ 200
  "An event of a channel has so many characters of a service config at most.")

(defglobal **empty-config** (config:parse-service-config "{}"))

(defun told-config (config)
  "The beginning of CONFIG, for people."
  (let ((text (princ-to-string (config:service-config-source config))))
    (if (<= (length text) +told-config+)
        text
        (format nil "~A…" (subseq text 0 +told-config+)))))

(defun adopt-config (core config)
  "CONFIG is in force in CORE's channel from now on. Calls that wait for the first one take it."
  (let ((before (core-config core)))
    (unless (and before
                 (equal (config:service-config-source before)
                        (config:service-config-source config)))
      (trace-event :channel :service-config :target (core-name core) :config config)
      (when (or before (not (eq config **empty-config**)))
        (note-core-event core :info "service config ~:[adopted~;changed~]: ~A" before
                         (told-config config)))
      (let ((table (and (plusp (hash-table-count (config:service-config-methods config)))
                        (make-method-table config (core-receive-limit core)))))
        (sb-thread:barrier (:write))    ; other threads look things up in it
        (setf (core-config core) config
              (core-methods core) table
              (core-limits core) (and table #'call-limits)))
      (unless before
        (dolist (call (waiting-calls core))
          (when (and (null (call-status call)) (limit-time call))
            (wire:start-deadline call)))))))

(defun selected-config (core pushed)
  "The service config that is to be in force in CORE's channel now that its resolver has PUSHED one,
or :none, or the SERVICE-CONFIG-ERROR of what is none; nil if there is none to choose, so that the
channel cannot be used."
  (etypecase pushed
    (config:service-config pushed)
    ((eql :none) (or (core-default-config core) **empty-config**))
    (config:service-config-error
     (log-event :warning :service-config-refused :target (core-name core)
                                                 :reason (princ-to-string pushed))
     (or (core-config core) (core-default-config core)))))

(defun core-policy (core)
  "The POLICY-CONFIG by which CORE's channel balances: the user's choice, the service config's, or
pick_first."
  (or (core-balancing core)
      (and (core-config core) (config:service-config-balancing (core-config core)))
      (config:default-policy-config :pick-first)))
