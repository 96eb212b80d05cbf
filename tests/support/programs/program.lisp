;;;; Programs beside the tests: those installed, the Go peers and our own `clgrpc` command. A test
;;;; that needs one that is not there ends as skipped (NEED-PROGRAM, NEED-PEER). The standard output
;;;; of a program is read line by line on a thread of its own, so that a wait for a line has a time
;;;; limit; the program is killed when its WITH- form is left.

(in-package #:clgrpc.tests.support)

(defun system-sources (system)
  "The paths of the sources of SYSTEM, wherever they are."
  (labels ((paths (component)
             (typecase component
               (asdf:cl-source-file (list (asdf:component-pathname component)))
               (asdf:parent-component (mapcan #'paths
                                              (copy-list (asdf:component-children component)))))))
    (paths (asdf:find-system system))))

(defun root-file (name)
  "The path of the file NAME in the directory of clgrpc.asd."
  (uiop:native-namestring (asdf:system-relative-pathname "clgrpc" name)))

(defun call-with-folder (function)
  (let ((folder (format nil "~Aclgrpc-~36R/" (uiop:native-namestring (uiop:temporary-directory))
                        (random (expt 36 8) (make-random-state t)))))
    (ensure-directories-exist folder)
    (unwind-protect (funcall function folder)
      (uiop:delete-directory-tree (pathname folder) :validate t :if-does-not-exist :ignore))))

(defmacro with-folder ((folder) &body body)
  "Evaluate BODY with FOLDER bound to the name, with a / at its end, of a new folder, removed
afterwards."
  `(call-with-folder (lambda (,folder) ,@body)))

;;; Programs that are installed

(defun program-path (&rest names)
  "The path of the first of the programs NAMES that is installed, or NIL."
  (loop for name in names
          thereis (let ((path (uiop:run-program (list "sh" "-c" "command -v \"$0\"" name)
                                                :output '(:string :stripped t)
                                                :ignore-error-status t)))
                    (and (plusp (length path)) path))))

(defun need-program (&rest names)
  "The path of the first of the programs NAMES that is installed; without any end the test as
skipped. `scripts/install --test` installs them."
  (or (apply #'program-path names)
      (skip-test "~{~A~^ or ~} is not installed" names)))

(defun look-with-browser (script &rest arguments)
  "The text that SCRIPT, a file of the project for Node.js, prints when called with the path of
Chromium and ARGUMENTS. It uses tests/support/programs/browser.mjs."
  (uiop:run-program (list* (need-program "node") (root-file script)
                           (need-program "chromium" "chromium-browser" "google-chrome") arguments)
                    :output :string :error-output *error-output*))

;;; Programs of the project

(defun script-output (program &rest arguments)
  "Run a script; return its trimmed output, or NIL if it fails, whose complaints are shown."
  (multiple-value-bind (output error-output code)
      (uiop:run-program (cons program arguments) :output '(:string :stripped t)
                                                 :error-output :string :ignore-error-status t)
    (unless (zerop code)
      (format *error-output* "~&~A~@[ ~{~A~^ ~}~]: ~A~%" program arguments error-output))
    (when (zerop code)
      output)))

(defconstant +least-go+ 21
  "Go 1.21 fetches the newer Go that the peers ask for; those before cannot.")

(defun go-absence ()
  "Why there is no Go to build the peers with, as text, or NIL if there is one."
  (multiple-value-bind (output error-output code)
      (uiop:run-program "go version" :output '(:string :stripped t) :ignore-error-status t)
    (declare (ignore error-output))
    (let* ((place (search "go1." output))
           (minor (and place (parse-integer output :start (+ place 4) :junk-allowed t))))
      (cond ((plusp code) "Go is not installed")
            ((< (or minor 0) +least-go+)
             (format nil "Go 1.~D or later is needed, this is ~A" +least-go+ output))))))

(defvar *peer-programs* '() "An alist from the name of a Go program to its path.")

(defun need-peer (&optional (name "peer"))
  "The path of the Go program NAME, \"peer\" or a folder of tests/peers, built if need be; without a
Go to do it end the test as skipped. Signal an error if it does not build."
  (or (cdr (assoc name *peer-programs* :test #'string=))
      (let* ((absence (go-absence))
             (path (if absence
                       (skip-test "~A" absence)
                       (or (script-output (root-file "scripts/peer") name)
                           (error "The Go program ~A could not be built." name)))))
        (push (cons name path) *peer-programs*)
        path)))

(defun need-web-clients ()
  "The folder of connect-web and grpc-web, packages of npm, fetched if need be; where they cannot be
end the test as skipped."
  (or (script-output (root-file "scripts/web-clients"))
      (skip-test "connect-web and grpc-web are not here, and npm cannot fetch them")))

(defvar *clgrpc-program* nil)

(defun clgrpc-program ()
  "The path of bin/clgrpc, built if need be; the environment variable CLGRPC_PROGRAM names another.
Signal an error if it does not build."
  (or *clgrpc-program*
      (setf *clgrpc-program*
            (or (uiop:getenvp "CLGRPC_PROGRAM")
                (and (script-output "make" "--silent" "-C" (root-file "") "bin/clgrpc")
                     (root-file "bin/clgrpc"))))
      (error "bin/clgrpc could not be built.")))

(defun testee-program ()
  "The path of bin/clgrpc-testee, which is made with what CLGRPC-PROGRAM returns."
  (format nil "~A-testee" (clgrpc-program)))

(defvar *certificates* nil)

(defun certificate-file (name)
  "The path of the file NAME of scripts/certificates, made if need be."
  (format nil "~A/~A"
          (or *certificates*
              (setf *certificates* (script-output (root-file "scripts/certificates")))
              (error "The certificates could not be made."))
          name))

(defun install-certificate (name certificate key)
  "Copy the certificate NAME of scripts/certificates and its key to the files CERTIFICATE and KEY."
  (uiop:copy-file (certificate-file (format nil "~A.pem" name)) certificate)
  (uiop:copy-file (certificate-file (format nil "~A.key" name)) key))

;;; A running program

(defstruct (program (:copier nil))
  "A running program: PROCESS; LINES of its output that nobody has taken yet, oldest first."
  process
  reader
  (lines '() :type list)
  (ended nil)
  (asked 0)                             ; how often for a line since it has ended
  (lock (sb-thread:make-mutex :name "program lines"))
  (news (sb-thread:make-waitqueue)))

(defmethod print-object ((program program) stream)
  (print-unreadable-object (program stream :type t)
    (format stream "~D" (program-pid program))))

(defun program-pid (program)
  "The process id of PROGRAM."
  (sb-ext:process-pid (program-process program)))

(defun read-lines (program)
  (let ((stream (sb-ext:process-output (program-process program))))
    (flet ((tell (function)
             (sb-thread:with-mutex ((program-lock program))
               (funcall function)
               (sb-thread:condition-broadcast (program-news program)))))
      (loop for line = (ignore-errors (read-line stream nil))
            while line
            do (tell (lambda ()
                       (setf (program-lines program)
                             (append (program-lines program) (list line))))))
      (tell (lambda () (setf (program-ended program) t))))))

(defun start-program (path arguments)
  (let ((program (make-program :process (sb-ext:run-program path arguments :wait nil :input nil
                                                            :output :stream :error :output
                                                            :directory (root-file "")))))
    (setf (program-reader program)
          (sb-thread:make-thread #'read-lines :name "program reader" :arguments (list program)))
    program))

(defun stop-program (program)
  (let ((process (program-process program)))
    (when (sb-ext:process-alive-p process)
      (sb-ext:process-kill process sb-unix:sigkill))
    (sb-ext:process-wait process)
    (sb-thread:join-thread (program-reader program))
    (sb-ext:process-close process)))

(defun call-with-program (function path arguments)
  "Call FUNCTION with the program at PATH running with ARGUMENTS, killed on the way out."
  (let ((program (start-program path arguments)))
    (unwind-protect (funcall function program)
      (stop-program program))))

(defmacro with-program ((variable path &rest arguments) &body body)
  "Run BODY with VARIABLE bound to the program at PATH, which runs with ARGUMENTS, strings."
  `(call-with-program (lambda (,variable) ,@body) ,path (list ,@arguments)))

(defun program-line (program &key (timeout-seconds (patient-seconds 60)))
  "Take the next line PROGRAM has printed, waiting for it; NIL once its output has ended. Signal an
error after TIMEOUT-SECONDS, and if somebody goes on asking for a line that does not come."
  (sb-thread:with-mutex ((program-lock program))
    (loop
      (cond ((program-lines program) (return (pop (program-lines program))))
            ((program-ended program)
             (when (< 100 (incf (program-asked program)))
               (error "~S has ended before it printed what a test waits for." program))
             (return nil))
            ((not (sb-thread:condition-wait (program-news program) (program-lock program)
                                            :timeout timeout-seconds))
             (error "~S has printed nothing for ~D seconds." program timeout-seconds))))))

(defun program-exit-code (program)
  "Wait until PROGRAM, whose output has ended, ends; return its exit code."
  (sb-ext:process-exit-code (sb-ext:process-wait (program-process program))))

(defun stopped-p (program)
  "True if all threads of PROGRAM have been stopped by a signal, or have ended."
  (loop for file in (directory (format nil "/proc/~D/task/*/stat"
                                       (sb-ext:process-pid (program-process program)))
                               :resolve-symlinks nil)
        for line = (ignore-errors (uiop:read-file-line file))
        ;; the name before it, in parentheses, may be anything
        always (or (null line) (find (char line (+ 2 (position #\) line :from-end t))) "TZX"))))

(defun signal-program (program signal)
  "Send PROGRAM the SIGNAL of that number. After SIGSTOP its threads go on until each has seen it:
wait for that, a second at most."
  (sb-ext:process-kill (program-process program) signal)
  (when (= signal sb-unix:sigstop)
    (loop repeat 1000 until (stopped-p program) do (sleep 0.001))))

(defun terminate-program (program)
  "Send SIGTERM to PROGRAM and return its exit code once it has ended."
  (signal-program program sb-unix:sigterm)
  (loop while (program-line program))
  (program-exit-code program))

(defun kill-program (program)
  "End PROGRAM at once, with SIGKILL."
  (signal-program program sb-unix:sigkill)
  (sb-ext:process-wait (program-process program))
  nil)

(defun run-to-end (path arguments &key (timeout-seconds (patient-seconds 120)))
  "Run the program at PATH to its end; return its exit code and the list of the lines it printed.
Signal an error if no line comes for TIMEOUT-SECONDS."
  (call-with-program (lambda (program)
                       (let ((lines (loop for line = (program-line
                                                      program :timeout-seconds timeout-seconds)
                                          while line collect line)))
                         (values (program-exit-code program) lines)))
                     path arguments))

;;; Servers

(defun server-address (program)
  "Wait for PROGRAM to print `listening on HOST:PORT`; return that address."
  (loop with prefix = "listening on "
        for line = (program-line program)
        do (cond ((null line) (error "~S ended before it listened." program))
                 ((uiop:string-prefix-p prefix line)
                  (return (subseq line (length prefix)))))))

(defmacro with-server-program ((variable address path &rest arguments) &body body)
  "As WITH-PROGRAM, with ADDRESS bound to the address at which that program, a server, listens."
  `(with-program (,variable ,path ,@arguments)
     (let ((,address (server-address ,variable)))
       ,@body)))

(defun foreign-octets ()
  "How many octets of foreign memory (malloc's) this process has in use; 0 on other machines than
x86-64."
  ;; mallinfo2 returns a structure of ten words, which is passed as an argument there
  #+x86-64
  (let ((words (make-array 10 :element-type '(unsigned-byte 64))))
    (sb-sys:with-pinned-objects (words)
      (sb-alien:alien-funcall
       (sb-alien:extern-alien "mallinfo2" (function sb-alien:void sb-sys:system-area-pointer))
       (sb-sys:vector-sap words)))
    (aref words 7))
  #-x86-64
  0)
