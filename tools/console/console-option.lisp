;;;; The option by which a server's command line has the console shown.

(in-package #:clgrpc.console)

(defun open-console (addresses metrics credentials)
  "A console of METRICS to be shown on ADDRESSES. It has a secret, which other machines may send
only if there are CREDENTIALS."
  (let ((remote (notevery #'loopback-address-p addresses)))
    (when (and remote (null credentials))
      (command:refuse "--console ~{~A~^,~}: others than this machine would send its secret over ~
                       the network as it is; give --tls-cert, or an address of this machine ~
                       such as 127.0.0.1:0"
                      addresses))
    (make-console :metrics metrics :remote remote)))

(defun call-with-console (addresses metrics credentials function)
  "Call FUNCTION with a console of METRICS, which is shown on ADDRESSES, over TLS if there are
CREDENTIALS, while it runs, and where that is, a string; with nil and nil if ADDRESSES are nil. From
any thread."
  (if (null addresses)
      (funcall function nil nil)
      (let ((console (open-console addresses metrics credentials)))
        (program:call-with-web addresses credentials (list (console-handler console))
                               (lambda (page) (console-url console page))
                               (lambda (url) (funcall function console url))))))

(defun find-console (observers)
  (find-if (lambda (observer) (typep observer 'console)) observers))

(defun make-console-as-asked (given)
  "A list of the console that GIVEN, the plist of a command line, asks for, and of its metrics if
the observers of GIVEN have none; without a console if these have one."
  (destructuring-bind (&key console observer credentials &allow-other-keys) given
    (when (and console (not (find-console observer)))
      (let* ((own (find-if (lambda (observer) (typep observer 'metrics:metrics)) observer))
             (metrics (or own (metrics:make-metrics)))
             (made (open-console (if (listp console) console (list console)) metrics
                                 credentials)))
        (if own (list made) (list metrics made))))))

(defun call-with-console-page (server given function)
  "Call FUNCTION, which stops SERVER, while the console among its observers is shown where GIVEN,
the plist of a command line, says, with a list of a line that says so; with nil if that says
nothing."
  (declare (ignore server))
  (destructuring-bind (&key addresses observer credentials &allow-other-keys)
      (list* :addresses (getf given :console) given)
    (let ((console (find-console observer)))
      (program:call-with-web
       addresses credentials (and addresses (list (console-handler console)))
       (lambda (page) (console-url console page))
       (lambda (url)
         (funcall function (and url (list (format nil "console at ~A" url)))))))))

(command:define-shared-options :console
  (console "ADDRESSES" (command:addresses-parser 0) nil
           "Serve a page with the process's calls and counts at ADDRESSES; prints the address to
      open, which has a secret in it. If others than this machine reach ADDRESSES, they may look,
      over HTTPS: that needs --tls-cert."))

(command:add-group "clgrpc-tools/console" (command:option-list :console) 'call-with-console-page
                   :observers 'make-console-as-asked)
