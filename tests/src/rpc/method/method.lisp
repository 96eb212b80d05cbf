;;;; Methods, services and the bindings through which the wire reaches handlers.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.method)

(defun kinds-of (class)
  (mapcar #'method:rpc-method-kind (method:service-methods (make-instance class))))

(test methods
  "The methods that define-proto makes for a service."
  (let ((method (method:stub-method 'words.speaker:echo)))
    (is (string= "/words.Speaker/Echo" (method:rpc-method-path method)))
    (is (string= "words.Speaker" (method:rpc-method-service-name method)))
    (is (eq 'words.speaker:echo (method:rpc-method-function-name method)))
    (is (string= "words.Word" (protobuf:message-type-name
                              (method:rpc-method-request-type method))))
    (is (search "/words.Speaker/Echo unary" (princ-to-string method)))
    (is (equal '(:unary :server-streaming :client-streaming :bidi) (kinds-of 'words:speaker)))
    (is (search "/words.Speaker/Echo" (documentation 'words.speaker:echo 'function)))
    (is (search "returns the reply and" (documentation 'words.speaker:echo 'function)))
    (dolist (symbol '(words.speaker:echo words.speaker:spell words.speaker:join words.speaker:talk))
      (is (not (find #\~ (documentation symbol 'function)))))))

(test stubs-say-what-they-are-called-with
  (handler-case (words.speaker:echo "127.0.0.1:1" (words:make-word))
    (misuse (error) (is (search "is called with a channel" (princ-to-string error))))))

(test stubs-say-which-argument-is-wrong
  "Fields in place of the request, and a time-out without its keyword."
  (flet ((refusal (&rest arguments)
           (handler-case (progn (apply #'words.speaker:echo arguments) "it was called")
             (misuse (error) (princ-to-string error)))))
    (let ((channel (make-instance 'method:channel)))
      (loop for (arguments reason) in `(((:text "x") "\"x\" is not a")
                                        ((,(words:make-word) 5) "5 is not a keyword")
                                        ((,(words:make-word) 5 6) "5 is not a keyword")
                                        ((,(words:make-word) :timeout) ":TIMEOUT has no value"))
            do (let ((text (apply #'refusal channel arguments)))
                 (is (search "ECHO is called with a channel, its request, a words.Word, and"
                             text)
                     "~A" text)
                 (is (search reason text) "~A" text))))))

(defun definition-places (name kind file)
  "The words in FILE, and the names of other files, at the reported definitions of NAME, of a KIND."
  (loop with text = (uiop:read-file-string file)
        for source in (sb-introspect:find-definition-sources-by-name name kind)
        for pathname = (sb-introspect:definition-source-pathname source)
        for start = (sb-introspect:definition-source-character-offset source)
        collect (if (equal file pathname)
                    (subseq text start (position-if-not #'alpha-char-p text :start start))
                    pathname)))

(test stubs-and-services-lead-to-the-proto-file
  (uiop:with-temporary-file (:pathname file :type "proto" :stream stream :direction :output)
    (format stream "syntax = 'proto3'; package seen;~%message Word { string text = 1; }
service Teller { rpc Tell(Word) returns (Word);~%  rpc TellAll(Word) returns (stream Word); }~%")
    :close-stream
    (let ((file (truename file)))
      (eval `(protobuf:define-proto ,(namestring file)))
      (flet ((places (name package kind)
               (definition-places (find-symbol name package) kind file)))
        (is (equal '("Teller") (places "TELLER" "SEEN" :class)))
        (is (equal '("Tell") (places "TELL" "SEEN.TELLER" :generic-function)))
        (is (equal '("TellAll") (places "TELL-ALL" "SEEN.TELLER" :generic-function)))
        (is (equal '("Tell" "Tell") (places "TELL" "SEEN.TELLER" :method)))
        ;; a handler is where its user wrote it, or in what is being loaded that evaluates it
        (evaluate `(defmethod ,(find-symbol "TELL" "SEEN.TELLER")
                       ((target ,(find-symbol "TELLER" "SEEN")) request &key)
                     request))
        (let ((places (places "TELL" "SEEN.TELLER" :method)))
          (is (= 2 (length places)))
          (is (= 1 (count "Tell" places :test #'equal))))))))

(test stubs-show-their-keywords
  (let ((shown (sb-introspect:function-lambda-list 'words.speaker:echo)))
    (is (equal '("TARGET" "REQUEST" "&KEY" "TIMEOUT" "DEADLINE" "METADATA" "WAIT-FOR-READY"
                 "CALL-CREDENTIALS" "COMPRESSION" "AUTHORITY" "MAX-SEND-OCTETS"
                 "MAX-RECEIVE-OCTETS" "VALUES")
               (mapcar #'symbol-name shown)))
    (let ((described (with-output-to-string (out) (describe 'words.speaker:echo out))))
      (dolist (keyword (rest (member '&key shown)))
        (is (search (format nil ":~(~A~)" keyword) described) "~A is not in ~A" keyword
            described)))))

(defun refusal (function &rest arguments)
  "The text of the MISUSE that FUNCTION signals, or an empty one."
  (handler-case (progn (apply function arguments) "")
    (misuse (error) (princ-to-string error))))

(test handlers-have-the-lambda-list-of-handlers
  "A method with another lambda list is refused with the right one: without keywords, with optional
parameters, or with another number of required ones."
  (dolist (lambda-list '(((service words:speaker) request)
                         ((service words:speaker) request &optional call)
                         ((service words:speaker) &key)
                         ((service words:speaker) request call &key)))
    (let ((refusal (refusal #'evaluate `(defmethod words.speaker:echo ,lambda-list service))))
      (is (search "WORDS.SPEAKER:ECHO has two required parameters and &key" refusal))
      (is (search "(service request &key call), not (" refusal)))))

(test handlers-get-no-keyword-but-call
  "A keyword that handlers never get is refused by name where the handler is defined; so is one with
a default or another variable. Methods for other targets may have any."
  (dolist (parameter '(context (context 1) ((:context it))))
    (is (search "gets no keyword argument but :CALL, its call, so :CONTEXT would always be nil"
                (refusal #'evaluate
                         `(defmethod words.speaker:echo ((service words:speaker) request
                                                         &key call ,parameter)
                            request)))))
  (remove-method #'words.speaker:echo
                 (evaluate '(defmethod words.speaker:echo ((target (eql 'nobody)) request
                                                           &key timeout)
                             request))))

(test stubs-take-a-target-and-a-request
  "The text names the stub, its request and the number of arguments."
  (is (equal (format nil "WORDS.SPEAKER:ECHO is called with a channel and its request, a ~
                          words.Word, and then keywords and values; this call has only ~
                          one argument.")
             (refusal #'apply #'words.speaker:echo (list (words:make-word)))))
  (is (search (format nil "a channel and its requests, a sequence, a function or :open, and then ~
                           keywords and values; this call has no argument.")
              (refusal #'apply #'words.speaker:join '()))))

(test services-have-methods
  "An object that can never serve a call is refused; a service class without an RPC method is not."
  (is (search "has no methods: its class is a subclass of SERVICE"
              (refusal #'method:check-service (make-instance 'method:service))))
  (is (search "is not a service: give instances" (refusal #'method:check-service 'words:speaker)))
  (is (search "by LIST* or APPEND"
              (refusal #'method:check-service (list (make-instance 'words:speaker)))))
  (eval '(protobuf:define-proto "mute.proto" :source "syntax = 'proto3'; package mute;
service Mute {}"))
  (dolist (class (list 'words:speaker (find-symbol "MUTE" "MUTE")))
    (is (typep (method:check-service (make-instance class)) class)))
  (is-true (method:check-service (method:make-generic-service #'list)))
  (is (search "The handler of a generic service is called with three arguments, (method request"
              (refusal #'method:make-generic-service (lambda (request call) (list request call))))))

(test handlers-are-for-requests
  "A method would never be called if its second argument has a class of no request, so it is
refused: arguments in the wrong order, and another message."
  (flet ((refusal (form) (refusal #'evaluate form)))
    (dolist (method '(words.speaker:echo words.speaker:join))
      (is (search (format nil "The second argument of a handler of ~S is the " method)
                  (refusal `(defmethod ,method (request (service words:speaker) &key) request))))
      (is (search "never a GOOGLE.RPC:STATUS"
                  (refusal `(defmethod ,method ((service words:speaker)
                                                (request google.rpc:status) &key)
                              request)))))
    (is (search "the stream of requests, a "
                (refusal '(defmethod words.speaker:join ((service words:speaker)
                                                         (words words:word) &key)
                           words))))
    ;; these are handlers
    (dolist (class '(words:word structure-object t))
      (let ((method (evaluate `(defmethod words.speaker:echo ((service (eql 'nobody))
                                                              (request ,class) &key)
                                 request))))
        (is-true method)
        (remove-method #'words.speaker:echo method)))))

(test several-services
  "A class of two services has the methods of both."
  (eval '(defclass both (words:speaker words:listener) ()))
  (is (= 5 (length (method:service-methods (make-instance 'both))))))

(defun evaluate (form)
  (handler-bind ((warning #'muffle-warning)) (eval form)))

(defun answer (binding service)
  "The value of BINDING for SERVICE."
  (words:word-text (funcall (method:binding-function binding) service (words:make-word :text "x")
                            :the-call)))

(defmacro define-answer (class text &rest qualifiers)
  `(evaluate '(defmethod words.speaker:echo ,@qualifiers ((service ,class) word &key call)
               (declare (ignorable word call))
               ,text)))

(test bindings
  "There is one for each class; each change of the methods is published in it at once."
  (evaluate '(progn (defclass base (words:speaker) ())
                    (defclass derived (base) ())))
  (let* ((service (make-instance 'derived))
         (binding (method::ensure-binding #'words.speaker:echo (class-of service)))
         (before nil))
    (is (eq binding (method::ensure-binding #'words.speaker:echo (find-class 'derived))))
    (is (not (eq binding (method::ensure-binding #'words.speaker:echo (find-class 'base)))))
    (signals status:unimplemented (answer binding service))
    (define-answer base (words:make-word :text "base"))
    (is (string= "base" (answer binding service)))
    (setf before (method:binding-function binding))
    (define-answer derived (words:make-word :text (format nil "derived ~A" (words:word-text
                                                                            (call-next-method)))))
    (is (string= "derived base" (answer binding service)))
    ;; a call that runs the old method meanwhile is not affected
    (is (string= "base" (words:word-text (funcall before service (words:make-word) nil))))
    (define-answer base (progn (assert (eq call :the-call)) (call-next-method)) :around)
    (is (string= "derived base" (answer binding service)))
    (let ((seen '()))
      (declare (special seen))
      (evaluate '(defmethod words.speaker:echo :before ((service base) word &key)
                  (declare (ignore word) (special seen))
                  (push :before seen)))
      (answer binding service)
      (is (equal '(:before) seen)))
    (evaluate '(defclass other (words:speaker) ()))
    (evaluate '(defclass derived (other) ()))
    (is (eq binding (method::ensure-binding #'words.speaker:echo (find-class 'derived))))
    (signals status:unimplemented (answer binding service))
    (define-answer other (words:make-word :text "other"))
    (is (string= "derived other" (answer binding service)))))

(test services-are-defined-again-in-silence
  "Neither an unchanged file nor a changed one causes warnings at the REPL, and handlers stay."
  (flet ((define-again (more)
           (let ((warnings '()))
             (list (with-output-to-string (*error-output*)
                     (let ((*standard-output* *error-output*))
                       (handler-bind ((warning (lambda (warning) (push warning warnings))))
                         (eval `(protobuf:define-proto "again.proto"
                                  :source ,(format nil "syntax = 'proto3'; package again;
message Word { string text = 1; ~A } service Teller { rpc Tell(Word) returns (Word);
rpc Tell~D(Word) returns (Word); }" more (length more)))))))
                   warnings))))
    (define-again "")
    (evaluate `(defclass teller (,(find-symbol "TELLER" '#:again)) ()))
    (evaluate `(defmethod ,(find-symbol "TELL" '#:again.teller) ((service teller) word &key)
                 (declare (ignore word))
                 :told))
    (let* ((function (fdefinition (find-symbol "TELL" '#:again.teller)))
           (binding (method::ensure-binding function (find-class 'teller))))
      (loop for more in '("" "" "string more = 2;" "")
            do (is (equal '("" ()) (define-again more)))
               (is (eq function (fdefinition (find-symbol "TELL" '#:again.teller))))
               (is (eq :told (funcall (method:binding-function binding) (make-instance 'teller)
                                      nil nil)))))))

(test bindings-with-eql-methods
  "Methods for one object work too."
  (evaluate '(defclass single (words:speaker) ()))
  (let* ((service (make-instance 'single))
         (binding (method::ensure-binding #'words.speaker:echo (class-of service))))
    (evaluate `(defmethod words.speaker:echo ((service (eql ,service)) word &key)
                 (declare (ignore word))
                 (words:make-word :text "one")))
    (is (string= "one" (answer binding service)))
    (signals status:unimplemented (answer binding (make-instance 'single)))))

(test publishing-while-loading
  "One thread makes bindings while another compiles and defines: no deadlock, nothing lost."
  (evaluate '(defclass shared (words:speaker) ()))
  (define-answer shared (words:make-word :text "shared"))
  (let* ((done nil)
         (definer (sb-thread:make-thread
                   (lambda ()
                     (loop until done
                           do (handler-bind ((warning #'muffle-warning))
                                (funcall (compile nil '(lambda ()
                                                        (defmethod words.speaker:echo
                                                            ((service shared) word &key)
                                                          (declare (ignore word))
                                                          (words:make-word :text "shared"))))))))
                   :name "definer")))
    (unwind-protect
         (loop for i below 300
               for name = (intern (format nil "CLASS-~D" i) '#:clgrpc.tests.rpc)
               do (evaluate `(defclass ,name (shared) ()))
                  (is (string= "shared" (answer (method::ensure-binding #'words.speaker:echo
                                                                    (find-class name))
                                                (make-instance name)))))
      (setf done t)
      (is (not (eq :hangs (sb-thread:join-thread definer :timeout 20 :default :hangs)))))))
