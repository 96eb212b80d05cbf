;;;; Run tests/cluster/faults as the variables CLGRPC_FAULTS… say; scripts/faults has the usage.
;;;; Nodes and workers are processes of a core which another process saves first, since a process
;;;; that has run threads cannot save one.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests/faults")

(defvar *begin* (get-internal-real-time))

(defun tell (text)
  (format t "~&~5D s  ~A~%" (floor (- (get-internal-real-time) *begin*)
                                   internal-time-units-per-second)
          text)
  (finish-output))

(defun call-faults (name &rest arguments)
  (apply #'uiop:symbol-call '#:clgrpc.tests.faults name arguments))

(defun faults-to-run ()
  (let ((known (call-faults '#:fault-names))
        (asked (remove "" (uiop:split-string (or (uiop:getenvp "CLGRPC_FAULTS") ""))
                       :test #'string=)))
    (or (loop for name in asked
              collect (or (find name known :test #'string-equal)
                          (progn (format *error-output* "There is no fault ~A; there are~
                                                         ~{ ~(~A~)~}.~%" name known)
                                 (quit 2))))
        known)))

(defun environment-number (name)
  (let ((*read-eval* nil)) (rational (read-from-string (uiop:getenv name)))))

(defun save-core (file)
  "Save a core with all systems loaded here in FILE."
  (let ((program (uiop:launch-program
                  (list sb-ext:*runtime-pathname* "--noinform" "--non-interactive" "--no-sysinit"
                        "--no-userinit" "--load" "scripts/load.lisp"
                        "--eval" "(clgrpc.scripts::load-strictly \"clgrpc-tests/faults\")"
                        "--eval" (format nil "(sb-ext:save-lisp-and-die ~S)" file))
                  :error-output *error-output*)))
    (unwind-protect
         (unless (zerop (uiop:wait-process program)) (error "No core could be saved in ~A." file))
      (when (uiop:process-alive-p program)
        (uiop:terminate-process program :urgent t)
        (uiop:wait-process program)))))

(defun tell-end (complaints summary)
  "Print COMPLAINTS, or that all was well; return true if there are none."
  (tell summary)
  (dolist (complaint complaints) (tell (format nil "WRONG: ~A" complaint)))
  (null complaints))

(defun run-users (faults seconds pause)
  "Run users for SECONDS, on one member of etcd and then on three; return true if all was well."
  (loop for members in '(1 3)
        always (progn
                 (tell (format nil "users of an etcd of ~R member~:P" members))
                 (multiple-value-call #'tell-end
                   (call-faults '#:run-faults :faults faults :members members
                                              :seconds (/ seconds 2) :pause pause
                                              :report #'tell)))))

(defun run-workflows (core faults count seconds pause)
  (multiple-value-call #'tell-end
    (call-faults '#:run-workflows core :faults faults :count count :seconds seconds :pause pause
                                       :report #'tell)))

(defun run-all (faults seconds pause workflows)
  "Run users and WORKFLOWS; return true if all was well."
  (let ((core (format nil "~Aclgrpc-faults-~36R.core"
                      (uiop:native-namestring (uiop:default-temporary-directory))
                      (random (expt 36 8) (make-random-state t)))))
    (if (zerop workflows)
        (run-users faults seconds pause)
        (unwind-protect
             (progn (save-core core)
                    (and (run-users faults (/ seconds 3) pause)
                         (run-workflows core faults workflows (* 2/3 seconds) pause)))
          (uiop:delete-file-if-exists core)))))

(when (uiop:getenvp "CLGRPC_FAULTS_LIST")
  (call-faults '#:list-faults *standard-output*)
  (quit 0))

(defvar *ending* nil "True once a signal has asked this process to end.")

(defun end-in-order (code)
  "Unwind the main thread, so that everything it has started ends, and exit with CODE. A second
signal waits for that end."
  (unless (shiftf *ending* t) (throw 'end code)))

(defun end-at (signal code)
  "Make SIGNAL end everything that this process has started, and then the process, with CODE."
  (sb-sys:enable-interrupt signal
                           (lambda (&rest arguments)
                             (declare (ignore arguments))
                             (sb-thread:interrupt-thread (sb-thread:main-thread)
                                                         (lambda () (end-in-order code))))))

(quit (catch 'end
        (end-at sb-unix:sigterm 143)
        (end-at sb-unix:sigint 130)
        (let ((well (run-all (faults-to-run)
                             (* 60 (environment-number "CLGRPC_FAULTS_MINUTES"))
                             (environment-number "CLGRPC_FAULTS_PAUSE")
                             (environment-number "CLGRPC_FAULTS_WORKFLOWS"))))
          (tell (if well "all was well" "something was wrong"))
          (if well 0 1))))
