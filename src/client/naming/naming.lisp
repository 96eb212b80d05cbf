;;;; Targets that the loop understands (loop/names/target.lisp): addresses, and names (gRPC's
;;;; document "Name Resolution"). Names are looked up by the system's resolver, or by the DNS server
;;;; in the target. A service config in TXT records (gRFC A2, choice.lisp) is looked up in addition
;;;; to the addresses, by DNS in both cases.
;;;;
;;;; 1. A name is looked up when the channel first needs it, and again when the channel has lost a
;;;;    server or cannot reach one, but not sooner than resolve-interval-seconds after a look-up
;;;;    that had an answer. A look-up that is requested earlier begins at that time.
;;;; 2. After a failed look-up the channel keeps its addresses, and asks again after its back-off.
;;;; 3. A missing or unreachable config is not a failure: if no DNS server answers, the previous
;;;;    config remains; if one answers that no such record exists, the resolver has no config.
;;;; 4. A channel that has had addresses waits a second for new ones; then it continues with the old
;;;;    ones. The channel does not wait if no look-up may begin yet, or if the look-up under way has
;;;;    already taken longer.

(in-package #:clgrpc.client)

(defconstant +config-grace-ns+ +ns-per-second+
  "How long addresses wait for the service config, in nanoseconds.")
(defconstant +look-up-wait-ns+ +ns-per-second+
  "How long a channel that has had addresses waits for new addresses, in nanoseconds.")

(defclass name-resolver (resolver)
  ((place :initarg :place :reader resolver-place
          :documentation "The target of the loop package that has the name to look up.")
   (together :initarg :together :reader resolver-together
             :documentation "True if all addresses of the name are one backend.")
   (timeout-ns :initarg :timeout-ns :reader resolver-timeout-ns) ; how long a look-up may take
   (dns-timeout-ns :initarg :dns-timeout-ns :reader resolver-dns-timeout-ns
                   :documentation "The time-out of a look-up that asks DNS servers.")
   (interval-ns :initarg :interval-ns :reader resolver-interval-ns
                :documentation "The minimum time between two look-ups.")
   (config-name :initarg :config-name :reader resolver-config-name
                :documentation "The name whose TXT records have the service config, octets.")
   (asking :initform nil :accessor resolver-asking
           :documentation "True while a look-up is under way.")
   (due-ns :initform nil :accessor resolver-due-ns
           :documentation "The time from which the next look-up may begin; nil for any time.")
   (timer :initform nil :accessor resolver-timer
          :documentation "The timer that begins the next look-up, or ends the wait for the one under
way.")
   ;; the addresses that the last look-up found
   (addresses :initform '() :accessor resolver-addresses)
   (told :initform nil :accessor resolver-told
         :documentation "True once ADDRESSES have been published since the resolver last began.")
   (config :initform :none :accessor resolver-config
           :documentation "The service config of the last look-up, an argument of DELIVER.")
   (number :initform nil :accessor resolver-number
           :documentation "A number that decides whether the channel is among a percentage of
clients; see choice.lisp."))
  (:documentation "A resolver for targets whose addresses must be looked up."))

(defmethod answers-p ((resolver name-resolver))
  (if (resolver-asking resolver)
      ;; without a timer either no addresses are known, or the wait is over
      (and (resolver-timer resolver)
           (timer-pending-p (resolver-timer resolver)))
      (due-p resolver)))

(defun due-p (resolver)
  "True if RESOLVER may begin a look-up now."
  (or (null (resolver-due-ns resolver))
      (<= (resolver-due-ns resolver) (resolver-now resolver))))

(defun resolver-now (resolver)
  (loop:event-loop-now (resolver-loop resolver)))

(defmethod begin-resolving ((resolver name-resolver))
  (setf (resolver-told resolver) nil)
  (cond ((resolver-asking resolver) (limit-wait resolver)) ; the resolver has been asking since
                                                           ; before the channel was idle
        ((due-p resolver) (begin-lookup resolver))
        (t (deliver-known resolver)     ; the last answer is new enough
           (resolve-again resolver))))

(defmethod resolve-again ((resolver name-resolver))
  (cond ((resolver-asking resolver))
        ((due-p resolver) (begin-lookup resolver))
        (t (set-resolver-timer resolver #'begin-lookup (resolver-due-ns resolver)))))

(defmethod end-resolving ((resolver name-resolver))
  (set-resolver-timer resolver nil 0))

(defun set-resolver-timer (resolver function due-ns)
  "Call FUNCTION with RESOLVER at DUE-NS, in place of the function set before; with nil, call no
function."
  (let ((loop (resolver-loop resolver)))
    (loop:stop-timer loop (shiftf (resolver-timer resolver) nil))
    (when function
      (let ((timer (loop:make-lasting-timer loop function resolver)))
        (setf (resolver-timer resolver) timer)
        (loop:start-timer loop timer due-ns)))
    nil))

;;; A look-up

(defun limit-wait (resolver)
  "Bound the wait of RESOLVER's channel for the present look-up: a channel that has had addresses
gets them again after +LOOK-UP-WAIT-NS+."
  (set-resolver-timer resolver
                      (when (resolver-addresses resolver) #'deliver-known)
                      (+ (resolver-now resolver) +look-up-wait-ns+)))

(defun begin-lookup (resolver)
  "Look up RESOLVER's name and its service config at once."
  (let ((found nil) (failure nil)       ; the addresses, or the reason of the failure
        (config (if (resolver-config-name resolver) :unknown :none))
        (query nil)                     ; the query for the service config
        (waiting 2))                    ; the number of answers to come
    (labels ((answered ()
               (when (zerop (decf waiting))
                 (end-lookup resolver found failure config)))
             (take-addresses (addresses text)
               (setf found addresses
                     failure text)
               (when query (dns:give-up query +config-grace-ns+))
               (answered))
             (take-config (outcome texts)
               (setf config (case outcome
                              (:found (offered-config resolver texts))
                              ((:no-such-name :no-data) :none)
                              (t :unknown)))
               (setf query nil)
               (answered)))
      (setf (resolver-asking resolver) t)
      (limit-wait resolver)
      (ask-for-addresses resolver #'take-addresses)
      (if (resolver-config-name resolver)
          (setf query (ask-for-config resolver #'take-config))
          (answered)))))

(defun ask-for-addresses (resolver function)
  "Look RESOLVER's addresses up. Then (FUNCTION addresses failure) is called on the loop."
  (declare (type function function))
  (let* ((loop (resolver-loop resolver))
         (place (resolver-place resolver))
         (server (loop:target-server place)))
    (flet ((failure (reason)
             (format nil "Cannot look up ~A: ~A" (loop:target-text place)
                     (string-right-trim "." reason))))
      (cond (server
             (trace-event :dns-resolver :look-up :name (loop:target-host place)
                          :server (os:address-text server))
             (dns:lookup-host loop (list server) (dns:name-octets (loop:target-host place))
                              (loop:target-port place) (resolver-dns-timeout-ns resolver)
                              (lambda (addresses outcome text)
                                (declare (ignore outcome))
                                (trace-answer place addresses text)
                                (funcall function addresses (and text (failure text))))))
            (t (loop:lookup loop place (resolver-timeout-ns resolver)
                            (lambda (addresses condition)
                              (funcall function addresses
                                       (and condition
                                            (string-right-trim
                                             "." (princ-to-string condition)))))))))))

(defun offered-config (resolver texts)
  "The service config for RESOLVER's channel in TEXTS, the data of TXT records, as an argument of
DELIVER."
  (unless (resolver-number resolver)
    (setf (resolver-number resolver)
          (random 100 (loop:event-loop-random (resolver-loop resolver)))))
  (handler-case (or (choose-config texts (resolver-number resolver)) :none)
    (config:service-config-error (error) error)))

(defun trace-answer (place addresses text)
  "Trace the answer of a DNS server for PLACE, as the loop's look-ups do."
  (if addresses
      (trace-event :dns-resolver :resolved :name (loop:target-text place)
                                           :addresses (mapcar #'os:address-text addresses))
      (trace-event :dns-resolver :look-up-failed :name (loop:target-text place) :reason text)))

(defun ask-for-config (resolver function)
  "Ask for the texts of RESOLVER's service config. Then (FUNCTION outcome texts) is called on the
loop, perhaps before this function returns. Return the query, or nil if it has ended."
  (let* ((server (loop:target-server (resolver-place resolver)))
         (query (dns:ask (resolver-loop resolver)
                         (if server (list server) (dns:system-servers))
                         (resolver-config-name resolver) dns:+txt+
                         (resolver-dns-timeout-ns resolver) function)))
    query))

(defun end-lookup (resolver addresses failure config)
  "End the look-up of RESOLVER with ADDRESSES or FAILURE, and CONFIG, :unknown if no server has
answered."
  (setf (resolver-asking resolver) nil)
  (set-resolver-timer resolver nil 0)
  (cond (failure
         (when (and (resolver-addresses resolver) (not (resolver-told resolver)))
           (deliver-known resolver))    ; a failure keeps the old addresses
         (deliver resolver '() failure))
        (t (setf (resolver-due-ns resolver) (+ (resolver-now resolver)
                                               (resolver-interval-ns resolver))
                 (resolver-addresses resolver) addresses)
           (unless (eq :unknown config) (setf (resolver-config resolver) config))
           (deliver-known resolver))))

(defun deliver-known (resolver)
  "Publish the known addresses and service config of RESOLVER."
  (setf (resolver-told resolver) t)
  (deliver resolver (address-backends (resolver-addresses resolver) (resolver-together resolver))
           nil (resolver-config resolver)))

(defun address-backends (addresses together)
  "The backends of ADDRESSES, the kernel's: one for each address, or a single one with all if
TOGETHER is true."
  (if together
      (list (addresses-backend addresses))
      (mapcar (lambda (address) (addresses-backend (list address))) addresses)))

;;; Resolvers of targets

(defun make-socket-resolver (text options &key together proxy)
  "A resolver for TEXT, a target that the loop understands. A look-up by the system takes no longer
than OPTIONS allow for connecting. With PROXY, the resolver publishes the proxy's addresses."
  (let* ((servers (loop:parse-target text :for-channel t))
         (place (if proxy (proxy:proxy-target proxy) servers))
         (addresses (loop:target-addresses place))
         (arguments (list :target text :name (loop:target-host servers)
                          :authority (loop:target-authority servers)
                          :host (loop:target-host servers) :proxy proxy)))
    (if addresses
        (apply #'make-instance 'fixed-resolver
               :backends (address-backends addresses together) arguments)
        (apply #'make-instance 'name-resolver
               :place place :together together
               :timeout-ns (seconds-ns (options-connect-timeout-seconds options))
               :dns-timeout-ns (seconds-ns (options-dns-timeout-seconds options))
               :interval-ns (seconds-ns (options-resolve-interval-seconds options))
               :config-name (and (null proxy) (config-name place options))
               arguments))))

(defun config-name (place options)
  "The name, octets, whose TXT records have the service config of PLACE, or nil if OPTIONS turn such
service configs off. Signal MISUSE if PLACE's name must be looked up by DNS, but is not a valid name
of DNS."
  (when (loop:target-server place) (dns:name-octets (loop:target-host place)))
  (when (options-dns-service-config options)
    (dns:name-octets (format nil "_grpc_config.~A" (loop:target-host place)))))

(defun make-passthrough-resolver (text options)
  "A resolver for TEXT, of the scheme passthrough: all addresses of the name belong to one server."
  (make-socket-resolver text options :together t))

(dolist (name '("dns" "ipv4" "ipv6" "unix" "unix-abstract"))
  (loop:register-scheme name :resolver #'make-socket-resolver))
(loop:register-scheme "passthrough" :resolver #'make-passthrough-resolver)

(defun make-resolver (text options &optional proxy)
  "The resolver of a channel to TEXT with OPTIONS; PROXY is as for MAKE-CHANNEL. Signal MISUSE if
TEXT is not a target."
  (let ((scheme (loop:find-scheme text))
        (proxy (proxy:find-proxy text proxy)))
    (cond (proxy (make-socket-resolver text options :together t :proxy proxy))
          (scheme
           (funcall (the function (or (loop:scheme-resolver scheme)
                                      (misuse "~S: no channel has the scheme ~A." text
                                              (loop:scheme-name scheme))))
                    text options))
          (t (make-socket-resolver text options)))))
