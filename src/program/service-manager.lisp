;;;; Notices to a service manager such as systemd (sd_notify(3)): the program serves, reloads or
;;;; ends. If the environment names a socket in NOTIFY_SOCKET each notice is a datagram of lines
;;;; NAME=VALUE to it; otherwise no notice is sent. If the manager does not listen, this is logged,
;;;; and the program continues.

(in-package #:clgrpc.program)

(defun manager-address ()
  "The address of the service manager's socket in the kernel's form; nil without a service manager."
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
  "Inform the service manager that SERVER serves."
  (tell-manager "READY=1"
                (format nil "STATUS=listening on ~{~A~^, ~}" (server:server-addresses server))))

(defun tell-stopping (seconds)
  "Notify the service manager that this process ends, which may take SECONDS."
  (tell-manager "STOPPING=1" "STATUS=letting calls end"
                (format nil "EXTEND_TIMEOUT_USEC=~D" (ceiling (* 1000000 seconds)))))

;;; Reloading. At most one reload is under way, on a separate thread. For all signals that arrive
;;; during a reload, one more reload follows. No reload begins once the end of the process has
;;; begun, and a manager that was notified of the end is not notified of a reload.

(defstruct (reloader (:constructor make-reloader (ending server functions)) (:copier nil))
  "The functions that reload data at SIGHUP, and the state of the reload."
  (ending nil :type ending :read-only t) ; the ending of the process
  (server nil :read-only t)             ; the server about which the service manager is informed
  (functions '() :type list :read-only t) ; functions without arguments
  ;; :wanted: a reload is under way, and one more must follow
  (state :idle :type (member :idle :under-way :wanted)))

(define-printer (reloader reloader)
  "~(~A~)" (reloader-state reloader))

(defun reload (ending server functions)
  "Call FUNCTIONS, one after the other; inform the service manager of the beginning and the end,
before ENDING has begun. An error in one function is logged, and the other functions are still
called."
  (flet ((tell (function)
           (loop:post (ending-loop ending) ; ENDING begins on this loop, before TELL-STOPPING
                      (lambda () (unless (ending-begun ending) (funcall function))))))
    (let ((begun-us (floor (monotonic-ns) 1000)))
      (tell (lambda ()
              (tell-manager "RELOADING=1" (format nil "MONOTONIC_USEC=~D" begun-us)))))
    (log-event :info :reloading)
    (dolist (function functions)
      (loop:guarding (:reload-error)
        (funcall (the function function))))
    (tell (lambda () (tell-serving server)))))

(defun change-state (reloader old new)
  "If the state of RELOADER is OLD, make it NEW and return true; else return false."
  (eq old (sb-ext:compare-and-swap (reloader-state reloader) old new)))

(defun reload-as-wanted (reloader)
  "Reload, and reload once more if this was requested meanwhile."
  (let ((ending (reloader-ending reloader)) (over nil))
    (unwind-protect
         (loop
           (unless (ending-begun ending)
             (reload ending (reloader-server reloader) (reloader-functions reloader)))
           (when (change-state reloader :under-way :idle)
             (return (setf over t)))
           (setf (reloader-state reloader) :under-way))
      ;; the thread of the reload is being terminated
      (unless over (setf (reloader-state reloader) :idle)))))

(defun start-reload (reloader)
  (sb-thread:make-thread #'reload-as-wanted :name "clgrpc reload" :arguments (list reloader)))

(defun want-reload (reloader)
  "Reload on a new thread, or once more after a reload that is under way; do nothing if the process
has begun to end. Only one thread at a time may call this."
  (cond ((ending-begun (reloader-ending reloader)))
        ((change-state reloader :under-way :wanted))
        ((change-state reloader :idle :under-way)
         (let ((started nil))
           (unwind-protect (setf started (start-reload reloader))
             (unless started (setf (reloader-state reloader) :idle)))))))

(defun reload-at-hang-up (ending server &rest functions)
  "At SIGHUP reload on a new thread by calling FUNCTIONS without arguments; ignore nil among them.
If there are no such functions, and no service manager, the signal still ends the process, for
example when a terminal is closed."
  (let ((functions (remove nil functions)))
    (when (or functions (manager-address))
      (let ((reloader (make-reloader ending server functions)))
        (call-at-hang-up ending (lambda () (want-reload reloader)))))))
