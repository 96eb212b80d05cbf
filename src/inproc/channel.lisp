;;;; Channels within the image: to a server, by itself or by the name it listens on, `inproc:NAME`,
;;;; and to a service object.

(in-package #:clgrpc.inproc)

(defclass inproc-channel (method:channel)
  ((site :initarg :site :reader channel-site) ; what its calls share
   ;; of what follows, and of whether SITE is open
   (lock :initform (sb-thread:make-mutex :name "clgrpc in-process channel") :reader channel-lock)
   ;; threads that wait for another state wait on this
   (closed :initform (sb-thread:make-waitqueue :name "clgrpc channel closed")
           :reader channel-closed))
  (:documentation "A channel whose calls stay in the image; made by SERVER-CHANNEL, or by
MAKE-CHANNEL for a target inproc:NAME; ended by CLOSE-CHANNEL."))

(defclass intercepted-inproc-channel (calling:interception inproc-channel) ()
  (:documentation "An in-process channel whose calls go through interceptors."))

(defmethod calling:channel-target ((channel inproc-channel))
  (site-target (channel-site channel)))

(defmethod print-object ((channel inproc-channel) stream)
  (print-unreadable-object (channel stream :type t)
    (format stream "~A ~(~A~)" (calling:channel-target channel) (calling:channel-state channel))))

(defmethod calling:channel-secure-p ((channel inproc-channel))
  t)

;;; Hosts

(defglobal **hosts** (make-hash-table :test 'equal :synchronized t)) ; by name

(defun server-host (server)
  "The host that SERVER is."
  (serving:ensure-entrance server #'host-p
                          (lambda ()
                            (let ((host (make-host :server server
                                                   :services (serving:server-services server)
                                                   :interceptors
                                                   (serving:server-interceptors server)
                                                   :observer (rpc:observer-for
                                                              (serving:server-observer server)
                                                              :role :server)
                                                   :options (serving:server-options server))))
                              (renew-table host)
                              host))))

(defun host-address (address)
  "ADDRESS, inproc:NAME, with the scheme in lower case. Signal MISUSE if it has no name."
  (let ((start (length "inproc:")))
    (when (= start (length address)) (misuse "~S names no rpc: inproc:NAME." address))
    (concatenate 'string "inproc:" (subseq address start))))

(defun listen-here (server address)
  "Have channels to ADDRESS lead to SERVER."
  (let ((address (host-address address))
        (host (server-host server)))
    (sb-ext:with-locked-hash-table (**hosts**)
      (when (gethash address **hosts**) (misuse "Another server listens on ~A." address))
      (setf (gethash address **hosts**) host))
    (unless (host-name host) (setf (host-name host) address))))

(defmethod serving:entrance-address ((host host))
  (host-name host))

(defmethod serving:close-entrance ((host host))
  (setf (host-state host) :closed)
  (sb-ext:with-locked-hash-table (**hosts**)
    (loop for name in (loop for name being the hash-keys of **hosts** using (hash-value value)
                            when (eq host value) collect name)
          do (remhash name **hosts**))))

(defmethod serving:entrance-busy-p ((host host))
  (plusp (tally-open (host-tally host))))

(defmethod serving:entrance-calls ((host host))
  (tally-ended (host-tally host)))

(defun host-open-lines (host)
  (sb-thread:with-mutex ((host-lock host))
    (alexandria:hash-table-keys (host-lines host))))

(defmethod serving:abandon-entrance ((host host) status text)
  (setf (host-ending host) (list status text)
        (host-state host) :abandoned)
  (dolist (line (host-open-lines host))
    (end-by-server line status text)))

;;; Channels

(defun find-named-host (site)
  "Look up the host of SITE, which had none so far, or one that has closed; nil if there is none."
  (let ((name (site-name site)))
    (when name
      (setf (site-host site) (values (gethash name **hosts**))))))

(define-hot host-of ((site site)) (or null host)
  "Whom SITE calls, or nil if there is nobody."
  (let ((host (site-host site)))
    (if (and host (eq :open (host-state host)))
        host
        (find-named-host site))))

(defmethod calling:close-channel ((channel inproc-channel))
  (let* ((site (channel-site channel))
         (host (site-host site)))
    (when (sb-thread:with-mutex ((channel-lock channel))
            (prog1 (shiftf (site-open site) nil)
              (sb-thread:condition-broadcast (channel-closed channel))))
      (when host
        (dolist (line (host-open-lines host))
          (when (eq site (call-site (line-server line)))
            (rpc:abort-as (line-client line) :channel-closed))))
      (release-site site)))
  nil)

(defmethod calling:channel-state ((channel inproc-channel))
  (if (site-open (channel-site channel)) :ready :shutdown))

(defmethod calling:wait-for-state-change ((channel inproc-channel) state &key (timeout 10))
  (loop:await-until (channel-closed channel) (channel-lock channel) (loop:notice-end timeout)
                    (lambda ()
                      (let ((now (calling:channel-state channel)))
                        (and (not (eq now state)) now)))))

(defmethod calling:reset-back-off ((channel inproc-channel))
  channel)

(defmethod calling:ensure-connected ((channel inproc-channel) &key timeout)
  (declare (ignore timeout))
  (let ((site (channel-site channel)))
    (unless (site-open site) (misuse "~A is closed." channel))
    (unless (host-of site)
      (error (status:make-rpc-error :unavailable :ended-by :transport :sent nil
                                              :message (absence-text site))))
    channel))

(defun absence-text (site)
  (if (site-name site)
      (format nil "no server listens on ~A" (site-name site))
      "the server has stopped"))
