;;;; RUN-SERVER, the body of a program's main function.

(in-package #:clgrpc.program)

(defun program-name ()
  (let ((path (first sb-ext:*posix-argv*)))
    (if path (file-namestring (sb-ext:parse-native-namestring path)) "server")))

(defparameter *own-keywords* '(:arguments :exit :reload)
  "RUN-SERVER's keyword arguments that are neither options of the command line nor START-SERVER's.")

(defun server-command (defaults)
  "The command line of a program that serves. DEFAULTS, a plist, replace defaults of the options."
  (flet ((with-default (option)
           (let ((default (getf defaults (argument-key option) option)))
             (if (eq default option)
                 option
                 (option-with-default option default)))))
    (make-command :name (program-name) :invocation (program-name)
                  :documentation "Serve until SIGTERM or SIGINT, then let running calls end."
                  :options (mapcar #'with-default
                                   (append (option-list :serving) (all-group-options))))))

(defun start-arguments (options command)
  "The part of OPTIONS, a plist, that only START-SERVER takes: no option of COMMAND."
  (loop for (key value) on options by #'cddr
        unless (or (member key *own-keywords*)
                   (find key (command-options command) :key #'argument-key))
          append (list key value)))

(defun log-default ()
  "The default level of the log; nil, for no log, if the program has chosen a log itself."
  (and (member *log-function* (list 'log-errors #'log-errors)) :info))

(defun without-program (arguments)
  "Return ARGUMENTS, a list of strings; if they are SB-EXT:*POSIX-ARGV*, without the program's own
name, with which that list begins."
  (if (eq arguments sb-ext:*posix-argv*) (rest arguments) arguments))

(defun run-as-asked (services arguments options)
  "Serve as RUN-SERVER does, and return the exit code."
  (flet ((complain (error code)
           (format *error-output* "~A: ~A~%" (program-name) error)
           code))
    (handler-case
        (let* ((command (server-command (append options (list :log-level (log-default)))))
               (given (parse-arguments command (without-program arguments))))
          (if (eq :help given)
              (write-command-help command *standard-output*)
              (progn
                (tune-collector)
                (call-with-ending
                 (lambda (ending)
                   (serve-as-asked (as-list services) given ending
                                   (start-arguments options command)
                                   :reload (getf options :reload))))))
          0)
      (usage-error (error) (complain error 2))
      (clgrpc-error (error) (complain error 1)))))

(defconstant +exit-seconds+ 2
  "The maximum time, in seconds, that an exiting process gives other threads to end, and a reader to
take the last output.")

(defun write-everything ()
  "Write the waiting output of the log and the standard streams. Return false if the writing takes
too long because the reader has stopped reading but still exists, such as a pager that waits for a
key."
  (flet ((finish (&rest streams)
           (dolist (stream streams)
             (handler-case (finish-output stream)
               (stream-error ())))))    ; the reader of the output has closed its end
    (flush-log)
    (not (eq :late (sb-thread:join-thread
                    (sb-thread:make-thread #'finish :name "clgrpc last output"
                                                    :arguments (list *standard-output*
                                                                     *error-output*))
                    :timeout +exit-seconds+ :default :late)))))

(defun run-server (services &rest options &key arguments (exit t) reload &allow-other-keys)
  "Serve SERVICES, in the form for START-SERVER, until SIGTERM or SIGINT; then let running calls
end, as STOP-SERVER does, write the rest of the log and of the standard output, and exit with 0.
Call this in the main function of a program.
ARGUMENTS   a list of strings, such as (uiop:command-line-arguments): options of the command line,
            without the program's name, or SB-EXT:*POSIX-ARGV* itself, which begins with that name.
            The options are those of `clgrpc serve` (--listen, --metrics, --tls-cert and more;
            --help lists them). A wrong option is a line on the standard error and exit code 2.
            Options of other systems, such as --register of clgrpc-etcd/discovery and --console of
            clgrpc-tools/console, exist when those systems are loaded.
EXIT        true by default; if false, return the exit code instead of exiting
RELOAD      a function without arguments, called at SIGHUP, on a thread of its own, to read the
            program's own files again; an error in it is logged. Signals that arrive during a reload
            cause one more reload after it. Certificates are read again, and a binary log is begun
            again, even if this is nil. nil by default
Each option of the command line is also a keyword argument, such as :LOG-LEVEL :WARNING, whose value
applies if ARGUMENTS do not have that option; all other keywords are those of START-SERVER. The
server listens on 127.0.0.1:50051 by default. The log, with events of :info and above, goes to the
standard error, unless *LOG-FUNCTION* has been set. RUN-SERVER prints \"listening on ADDRESS\" for
each address once the server serves. A second signal ends the process at once, with the exit code
128 plus the signal's number. An end that takes ten seconds longer than :DRAIN-SECONDS ends the
process at once with 1. Exiting unwinds the calling thread and runs SB-EXT:*EXIT-HOOKS*, unless the
last output cannot be written since its reader has stopped reading. An error of START-SERVER, such
as a port in use, is a line on the standard error and exit code 1. If the environment has
NOTIFY_SOCKET (systemd's Type=notify), the service manager is notified when the program serves,
reloads and ends. Signal MISUSE if RELOAD is not a function. Call this in the main thread."
  (unless (typep reload '(or null function)) (misuse ":RELOAD is a function, not ~S." reload))
  (let* ((written nil)
         (code (unwind-protect (run-as-asked services arguments options)
                 (setf written (write-everything)))))
    (cond ((not exit) code)
          (written (sb-ext:exit :code code :timeout +exit-seconds+))
          ;; otherwise the exit would write the remaining output, and wait for the reader
          (t (sb-ext:exit :code code :abort t)))))
