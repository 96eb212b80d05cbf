;;;; The service config in force for the calls of a channel (gRFC A21; service_config.proto). The
;;;; config in force is the resolver's, or else the channel's default. Before the resolver's first
;;;; answer no config is in force; calls that wait for the answer get the config when it arrives.
;;;;
;;;; The config of a method is looked up once and remembered. A channel whose config has no method
;;;; configs has no METHOD-TABLE, so its calls look nothing up.

(in-package #:clgrpc.client)

(defconstant +remembered-methods+ 64
  "The maximum number of methods that a table remembers; others are looked up by name each time.")

(defun lookup-method (table method)
  "Look up and remember the METHOD-CONFIG of METHOD in TABLE, which is nil if TABLE has none. From
any thread."
  (let ((config (config:find-method-config (method-table-config table) (rpc-method-path method))))
    (when (< (length (method-table-found table)) +remembered-methods+)
      (sb-ext:atomic-push (cons method config) (method-table-found table)))
    config))

(define-hot table-method-config ((table method-table) (method rpc-method))
    (or null config:method-config)
  "The METHOD-CONFIG of METHOD in TABLE; nil if TABLE has none. From any thread."
  (if-let ((found (assoc method (method-table-found table) :test #'eq)))
    (cdr found)
    (lookup-method table method)))

(define-hot method-config-of ((call client-call)) (or null config:method-config)
  "The METHOD-CONFIG of CALL's method in the service config in force; nil if the config has none.
From any thread."
  (let ((table (core-methods (client-call-core call))))
    (and table (table-method-config table (the rpc-method (call-rpc-method call))))))

;;; Settings of calls

(defun client-call-wait-for-ready (call)
  "True if CALL waits for ready. The setting is that of CALL's user or, if the user has set nothing,
that of the service config."
  (let* ((own (call-client-own-options call))
         (said (if own (client-own-options-wait-for-ready own) :unset)))
    (if (eq :unset said)
        (let ((config (method-config-of call)))
          (and config (eq t (config:method-config-wait-for-ready config))))
        said)))

(defun shorten-deadline (call deadline)
  "Change CALL's deadline to DEADLINE, unless CALL's own is earlier. Return true if the deadline has
changed; the timer for the new deadline does not run yet."
  (let ((own (call-deadline call))
        (parts (call-client-parts call)))
    (when (or (zerop own) (< deadline own))
      (setf (call-deadline call) deadline)
      (when (and parts (client-parts-timer parts))
        (loop:stop-timer (wire-call-loop call) (shiftf (client-parts-timer parts) nil)))
      t)))

(defun limit-time (call)
  "Shorten the deadline of CALL, which has begun, to the timeout of the service config. Return true
if the deadline has changed; then call WIRE:START-DEADLINE."
  (let* ((config (method-config-of call))
         (timeout-ns (and config (config:method-config-timeout-ns config))))
    (and timeout-ns
         (shorten-deadline call (status:deadline-in timeout-ns (client-call-born-ns call))))))

(defun call-limits (call)
  "Two values, the limits in octets of CALL's requests and of its responses. Each is the smaller of
the user's limit and the service config's, if both exist, else the limit that exists. The user's
limit is CALL's or, without one, the channel's."
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

;;; Adopting a config

(defconstant +told-config+ 200
  "The maximum number of characters of a service config in an event of a channel.")

(defglobal **empty-config** (config:parse-service-config "{}"))

(defun told-config (config)
  "The beginning of CONFIG, for people."
  (let ((text (princ-to-string (config:service-config-source config))))
    (if (<= (length text) +told-config+)
        text
        (format nil "~A…" (subseq text 0 +told-config+)))))

(defun adopt-config (core config)
  "Put CONFIG in force in CORE's channel. Calls that wait for the first config take it."
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
        (sb-thread:barrier (:write))    ; other threads read the table
        (setf (core-config core) config
              (core-methods core) table
              (core-limits core) (and table #'call-limits)))
      (unless before
        (dolist (call (waiting-calls core))
          (when (and (null (call-status call)) (limit-time call))
            (wire:start-deadline call)))))))

(defun selected-config (core pushed)
  "The service config for CORE's channel after its resolver has PUSHED a config, :none, or a
SERVICE-CONFIG-ERROR. Nil if no config can be used, so that the channel fails."
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
