;;;; Notices to a service manager such as systemd (sd_notify(3)): the program serves, reloads or
;;;; ends. Where the environment names a socket in NOTIFY_SOCKET each notice is a datagram of lines
;;;; NAME=VALUE to it; otherwise no notice is sent. If the manager does not listen, that is logged,
;;;; and the program goes on.

(in-package #:clgrpc.program)

(defun manager-address ()
  "The kernel's address of the service manager's socket, nil if there is none."
  (let ((name (sb-ext:posix-getenv "NOTIFY_SOCKET")))
    (when (and name (< 1 (length name)))
      (case (char name 0)
        (#\/ (os:make-unix-address (string-octets name)))
        (#\@ (os:make-unix-address (string-octets (subseq name 1)) :abstract t))))))

(defun send-to-manager (address octets)
  "Send OCTETS to the manager's ADDRESS; return a negated errno if that fails."
  (let ((socket (os:open-datagram-socket os:+af-unix+)))
    (if (os:failed-p socket)
        socket
        (unwind-protect
             (let ((result (os:connect-socket socket address)))
               (if (os:failed-p result)
                   result
                   (os:write-octets socket octets 0 (length octets))))
          (os:close-descriptor socket)))))

(defun tell-manager (&rest lines)
  "Send LINES to the service manager, if there is one. From any thread."
  (let ((address (manager-address)))
    (when address
      (let ((result (send-to-manager address (string-octets (format nil "~{~A~%~}" lines)))))
        (when (os:failed-p result)
          (log-event :warning :manager-not-told :reason (os:errno-text result))))))
  nil)

(defun tell-serving (server)
  "The service manager hears that SERVER serves."
  (tell-manager "READY=1"
                (format nil "STATUS=listening on ~{~A~^, ~}" (server:server-addresses server))))

(defun tell-stopping (seconds)
  "Notify the service manager that this process ends, which may take SECONDS."
  (tell-manager "STOPPING=1" "STATUS=letting calls end"
                (format nil "EXTEND_TIMEOUT_USEC=~D" (ceiling (* 1000000 seconds)))))

;;; Reloading

(defglobal **reload-lock** (sb-thread:make-mutex :name "clgrpc reload"))

(defun reload (server functions)
  "Call FUNCTIONS, one after the other; the service manager hears of the begin and the end. An error
in one is logged, and the others are called."
  (sb-thread:with-mutex (**reload-lock**)
    (tell-manager "RELOADING=1" (format nil "MONOTONIC_USEC=~D" (floor (monotonic-ns) 1000)))
    (log-event :info :reloading)
    (dolist (function functions)
      (loop:guarding (:reload-error)
        (funcall (the function function))))
    (tell-serving server)))

(defun reload-at-hang-up (ending server &rest functions)
  "At each SIGHUP RELOAD those of FUNCTIONS, each nil or without arguments, that are not nil, on a
thread of its own. If there are none, and no service manager, the signal ends the process still, as
it does when a terminal is closed."
  (let ((functions (remove nil functions)))
    (when (or functions (manager-address))
      (call-at-hang-up ending
                       (lambda ()
                         (sb-thread:make-thread (lambda () (reload server functions))
                                                :name "clgrpc reload"))))))
