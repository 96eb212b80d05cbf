;;;; The path of a unary call, printed: the functions that run, in their order, from the stub to the
;;;; handler and back, and the places where the path crosses from one package to another. See
;;;; scripts/path.
;;;;
;;;; Every function of our packages gets a wrapper that notes its name. A table of functions (the
;;;; operations of a transport, a sink, a handler) holds functions, not names: these are replaced by
;;;; the wrappers, too. A function that is compiled inline is not seen.

(load (merge-pathnames "../load.lisp" *load-truename*))

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc")

(defun our-packages ()
  (remove-if-not (lambda (package) (uiop:string-prefix-p "CLGRPC." (package-name package)))
                 (set-difference (list-all-packages) (list (find-package '#:clgrpc.scripts)))))

(sb-ext:defglobal **path** (list '()))  ; its car: the steps, newest first, (thread . symbol)
(sb-ext:defglobal **noting** (list nil)) ; its car: true while steps are noted

(defun wrapper (symbol function)
  (declare (type function function))
  (sb-int:named-lambda "step" (&rest arguments)
    (when (car **noting**)
      (sb-ext:atomic-push (cons sb-thread:*current-thread* symbol) (car **path**)))
    (apply function arguments)))

(defun ordinary-function-p (symbol)
  (and (fboundp symbol)
       (not (macro-function symbol))
       (not (special-operator-p symbol))
       (not (typep (fdefinition symbol) 'generic-function))
       ;; neither accessors nor constructors of structures
       (not (sb-int:info :function :source-transform symbol))
       (not (eq :inline (sb-int:info :function :inlinep symbol)))))

(defun replace-held (wrappers)
  "In objects of our structures, replace each function that has one of WRAPPERS by its wrapper."
  (let ((objects '()))
    (sb-vm:map-allocated-objects
     (lambda (object type size)
       (declare (ignore type size))
       (when (and (typep object 'structure-object)
                  (symbolp (type-of object))
                  (let ((package (symbol-package (type-of object))))
                    (and package (uiop:string-prefix-p "CLGRPC." (package-name package)))))
         (push object objects)))
     :all)
    (dolist (object objects)
      (dolist (slot (sb-kernel:dd-slots (sb-kernel:find-defstruct-description (type-of object))))
        (when (eq t (sb-kernel:dsd-raw-type slot))
          (let* ((index (sb-kernel:dsd-index slot))
                 (value (sb-kernel:%instance-ref object index))
                 (new (and (functionp value) (gethash value wrappers))))
            (when new (setf (sb-kernel:%instance-ref object index) new))))))))

(defun wrap-functions ()
  "Make all functions of ours note their calls."
  (let ((wrappers (make-hash-table :test 'eq)))
    (sb-ext:without-package-locks
      (dolist (package (our-packages))
        (do-symbols (symbol package)
          (when (and (eq package (symbol-package symbol)) (ordinary-function-p symbol))
            (let* ((function (fdefinition symbol)) (new (wrapper symbol function)))
              (setf (gethash function wrappers) new
                    (symbol-function symbol) new))))))
    (replace-held wrappers)))

(defun folder-of (symbol)
  (string-downcase (subseq (package-name (symbol-package symbol)) (length "CLGRPC."))))

(defun print-path (title steps verbose)
  "Print STEPS, symbols in order, and how often the path crosses from one package to another."
  (let ((folders (loop with last = nil
                       for symbol in steps
                       for folder = (folder-of symbol)
                       unless (equal folder last) collect folder
                         do (setf last folder))))
    (format t "~&~A: ~D steps, ~D functions, ~D crossings between packages~%  ~
               ~{~<~%  ~1,90:;~A~>~^ ~}~2%"
            title (length steps) (length (remove-duplicates steps)) (1- (length folders)) folders)
    (when verbose
      (let ((last nil))
        (dolist (symbol steps)
          (let ((folder (folder-of symbol)))
            (unless (equal folder last) (format t "~&  ~10A" folder))
            (format t " ~(~A~)" (symbol-name symbol))
            (setf last folder))))
      (format t "~2%"))))

(defun note-call (call)
  "Call CALL, a function without arguments, and return the steps that have been made meanwhile, in
order."
  (setf (car **path**) '()
        (car **noting**) t)
  (funcall call)
  (sleep 0.05)                          ; the functions after the answer, at the other end
  (setf (car **noting**) nil)
  (reverse (car **path**)))

(defun steps-of (steps predicate)
  "The symbols of those STEPS that a thread for which PREDICATE is true has made."
  (loop for (thread . symbol) in steps
        when (funcall predicate thread) collect symbol))

(defun from-wake-up (steps)
  "The STEPS of a loop's thread from the time when it has events. Before that the thread ends the
turn of the previous call, and waits."
  (or (member "NOTE-EPOLL-EVENTS" steps :key #'symbol-name :test #'string=) steps))

(defun driven-call (address)
  "The steps of a unary call, the fifth on its connection to ADDRESS, and its steps on this thread;
nil if another thread had the client's loop. That thread takes the loop when no caller has come for
a while, on a busy machine perhaps between two calls."
  (let ((channel (uiop:symbol-call '#:clgrpc '#:make-channel address))
        (request (uiop:symbol-call '#:helloworld '#:make-hello-request :name "Ada"))
        (here sb-thread:*current-thread*))
    (flet ((call () (uiop:symbol-call '#:helloworld.greeter '#:say-hello channel request)))
      (unwind-protect
           (let* ((steps (progn
                           (loop repeat 4 do (call))
                           (note-call #'call)))
                  (own (steps-of steps (lambda (thread) (eq thread here)))))
             (and (member "RUN-TURN" own :key #'symbol-name :test #'string=)
                  (values steps own)))
        (uiop:symbol-call '#:clgrpc '#:close-channel channel)))))

(defun print-paths (verbose)
  "Print the path of a unary call that its caller drives, at both ends."
  (let ((server (uiop:symbol-call '#:clgrpc '#:start-server
                                  (make-instance (uiop:find-symbol* '#:greeter
                                                                    '#:clgrpc.examples))
                                  :listen "127.0.0.1:0" :execution :inline)))
    (unwind-protect
         (loop repeat 1000
               do (multiple-value-bind (steps own)
                      (driven-call (uiop:symbol-call '#:clgrpc '#:server-address server))
                    (when steps
                      (print-path "Client" own verbose)
                      (print-path "Server"
                                  (from-wake-up
                                   (steps-of steps
                                             (lambda (thread)
                                               (search "server"
                                                       (sb-thread:thread-name thread)))))
                                  verbose)
                      (return))))
      (uiop:symbol-call '#:clgrpc '#:stop-server server :drain 0))))

(load-strictly "clgrpc/examples")
(wrap-functions)
(print-paths (uiop:getenvp "CLGRPC_PATH_STEPS"))
(quit 0)
