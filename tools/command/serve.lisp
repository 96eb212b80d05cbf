;;;; The command `serve` serves example services, and services that other systems add by ADD-OFFER,
;;;; until SIGTERM or SIGINT.

(in-package #:clgrpc.tools)

;;; The services

(defstruct (offer (:copier nil))
  (name "" :type string)                ; a word of the command line
  (summary "" :type string)             ; the description in the help text
  (maker nil :type function)            ; a function that returns service objects
  (page nil)                            ; the offer's handler for HTTP, if the web is served, or nil
  (execution '() :type (or list (eql :inline)))) ; an alist for START-SERVER; :inline for all

(defvar *offers* '() "The services that `serve` offers, in the order of its help text.")

(defun add-offer (name summary maker &key execution page)
  "Let `serve` offer services under NAME, described by SUMMARY in its help: the service objects that
the function MAKER returns. EXECUTION is the choice of the threads of their methods: an alist for
START-SERVER, or :inline for all of them. PAGE, if given, is a handler of HTTP that is served with
--web."
  (setf *offers* (append (remove name *offers* :key #'offer-name :test #'string=)
                         (list (make-offer :name name :summary summary :maker maker
                                           :execution execution :page page))))
  name)

(add-offer "greeter" "helloworld.Greeter; the name `delay:MS` is greeted after MS milliseconds"
           (lambda () (list (make-instance 'examples:greeter))) :execution :inline)
(add-offer "route-guide" "routeguide.RouteGuide as in the gRPC tutorials, with 100 features"
           (lambda () (list (make-instance 'examples:route-guide)))
           :execution '((routeguide.route-guide:get-feature . :inline)))

(add-offer "chat" "chat.Chat and, with --web, its page"
           (lambda () (list (make-instance 'examples:chat)))
           :page (examples:chat-page))

(defun offers-text ()
  "The part of the help of `serve` about its services."
  (format nil "The services, names with commas between:~:{~%      ~12A ~A~}"
          (loop for offer in *offers* collect (list (offer-name offer) (offer-summary offer)))))

(defun offer-names ()
  (mapcar #'offer-name *offers*))

(defun parse-services (string)
  "The offers whose names are in STRING, with commas between."
  (let ((offers (loop for name in (uiop:split-string string :separator ",")
                      collect (or (find name *offers* :key #'offer-name :test #'string=)
                                  (refuse "no service is called ~S; the services are ~
                                           ~{~A~^, ~}" name (offer-names))))))
    (unless (= (length offers) (length (remove-duplicates offers)))
      (refuse "a service is named twice in ~S" string))
    offers))

(defun offered-services (offers)
  "Return two values: the service objects of OFFERS, and the alist for START-SERVER that determines
the threads of their methods. Signal an error if two offers have the same service."
  (let ((services '()) (execution '()))
    (dolist (offer offers)
      (let ((made (funcall (offer-maker offer))))
        (setf services (append services made)
              execution (append execution (placement offer made)))))
    (refuse-duplicates offers services)
    (values services execution)))

(defun placement (offer services)
  "The alist for START-SERVER that determines the threads of the methods of OFFER; SERVICES are its
service objects."
  (if (eq :inline (offer-execution offer))
      (loop for service in services
            append (loop for method in (method:service-methods service)
                         collect (cons (method:rpc-method-function-name method) :inline)))
      (offer-execution offer)))

(defun refuse-duplicates (offers services)
  "Signal an error if two of SERVICES, which OFFERS have made, have the same name."
  (flet ((names (service)
           (remove-duplicates (mapcar #'method:rpc-method-service-name
                                      (method:service-methods service))
                              :test #'string=)))
    (loop for (name . others) on (mapcan #'names services)
          when (member name others :test #'string=)
            do (refuse "~{~A~^ and ~} cannot go together: more than one serves ~A"
                       (mapcar #'offer-name offers) name))))

;;; Serving

(defun print-statistics (server)
  (let ((statistics (grpc:server-statistics server)))
    (format t "turns=~D calls=~D~%" (getf statistics :turns) (getf statistics :calls))
    (finish-output)))

(defun serve-until-told (server)
  "Print the addresses of SERVER, and its statistics at each SIGUSR1. Return when the process was
asked to end and SERVER has stopped."
  (program:call-with-ending
   (lambda (ending)
     (program:call-at-report ending (lambda () (print-statistics server)))
     (unwind-protect (program:serve-until-end ending server '())
       (grpc:stop-server server)))))

;;; For measurements of memory

(defun collect-at-each-line ()
  "For each line on standard input collect all garbage and print how many octets are still in use."
  (loop while (read-line *standard-input* nil)
        do (let ((start-ns (monotonic-ns)))
             (sb-ext:gc :full t)
             (format t "heap=~D milliseconds=~,1F~%" (sb-kernel:dynamic-usage)
                     (/ (- (monotonic-ns) start-ns) 1d6))
             (finish-output))))

(define-command ("serve" given)
    (((services "SERVICES" #'parse-services #'offers-text))
     ((collect "[true|false]" #'parse-boolean nil
               "For measurements: for each line on standard input collect all garbage and print
      `heap=N milliseconds=N`, the octets in use after it and how long it took.")
      :serving
      :registration
      :console))
    "Serve gRPC, with health and reflection beside the services named. At SIGTERM or SIGINT lets
running calls end and exits with 0. Prints `listening on ADDRESS` for each address when ready, and
at SIGUSR1 a line `turns=N calls=N`: the turns of the event loops and the calls served."
  (multiple-value-bind (services execution) (offered-services (getf given :services))
    (tune-collector)
    (when (getf given :collect)
      (sb-thread:make-thread #'collect-at-each-line :name "clgrpc collect"))
    (let ((pages (and (getf given :web) (remove nil (mapcar #'offer-page (getf given :services))))))
      (program:call-with-ending
       (lambda (ending)
         (program:serve-as-asked (cons (make-instance 'grpc:health-service)
                                       (append (grpc:reflection-services) services))
                                 given ending (list :execution execution :http pages)
                                 :report #'print-statistics
                                 :paths (mapcar #'exchange:http-handler-path pages))))))
  0)
