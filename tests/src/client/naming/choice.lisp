;;;; The service config that a client takes from TXT records (gRFC A2).

(in-package #:clgrpc.tests.client)

(defun chosen (number &rest texts)
  "The full names of the methods in the config that a client with NUMBER chooses; nil if it chooses
none. TEXTS are TXT records of one string each."
  (let ((config (client::choose-config (mapcar (lambda (text) (list (string-octets text))) texts)
                                       number)))
    (and config
         (loop for key being the hash-keys of (config:service-config-methods config) collect key))))

(defun choice (service &optional (criteria ""))
  "A choice in JSON whose config names SERVICE."
  (format nil "{~@[~A,~]\"serviceConfig\":{\"methodConfig\":[{\"name\":[{\"service\":~S}],~
               \"waitForReady\":true}]}}"
          (and (string/= "" criteria) (substitute #\" #\' criteria)) service))

(defun choices (&rest choices)
  (format nil "grpc_config=[~{~A~^,~}]" choices))

(test the-first-choice-that-fits-is-taken
  (flet ((taken (expected criteria &optional (number 50))
           (is (equal (list expected)
                      (chosen number (choices (choice "a.A" criteria) (choice "b.B"))))
               "~A" criteria)))
    (taken "/a.A/" "")
    (taken "/b.B/" "'clientLanguage':['go','java']")
    (taken "/a.A/" "'clientLanguage':['go','LISP']")
    (taken "/a.A/" "'clientLanguage':['Common-Lisp']")
    (taken "/a.A/" "'clientLanguage':[]")
    (taken "/a.A/" (format nil "'clientHostname':['x','~A']" (machine-instance)))
    (taken "/b.B/" (format nil "'clientHostname':['~A.']" (machine-instance)))
    (taken "/b.B/" "'percentage':0")
    (taken "/b.B/" "'percentage':50")
    (taken "/a.A/" "'percentage':51")
    (taken "/a.A/" "'percentage':100" 99)
    (taken "/b.B/" "'percentage':0" 0)
    (taken "/b.B/" "'clientLanguage':['lisp'],'percentage':10")))

(test records-that-offer-nothing
  (is (null (chosen 0)))
  (is (null (chosen 0 "v=spf1 -all" "grpc_configs=[]" "grpc_conf")))
  (is (null (chosen 0 (choices))))
  (is (null (chosen 0 (choices (choice "a.A" "'percentage':0")))))
  (is (equal '("/b.B/") (chosen 0 "other" (choices (choice "a.A" "'percentage':0"))
                                (choices (choice "b.B"))))))

(test configs-of-many-strings
  (let* ((octets (string-octets (choices (choice "a.A"))))
         (strings (loop for start from 0 below (length octets) by 10
                        collect (subseq octets start (min (length octets) (+ 10 start))))))
    (is (client::choose-config (list strings) 0))))

(test records-that-are-wrong
  (loop for (path text)
          in `(("grpc_config" "grpc_config=")
               ("grpc_config" "grpc_config=[")
               ("grpc_config" "grpc_config={}")
               ("grpc_config[0]" "grpc_config=[1]")
               ("grpc_config[0]" "grpc_config=[{}]")
               ("grpc_config[0]" "grpc_config=[{\"serviceConfig\":1}]")
               ("grpc_config[0].colour" ,(choices (choice "a.A" "'colour':1")))
               ("grpc_config[0].percentage" ,(choices (choice "a.A" "'percentage':101")))
               ("grpc_config[0].percentage" ,(choices (choice "a.A" "'percentage':1.5")))
               ("grpc_config[0].clientLanguage" ,(choices (choice "a.A" "'clientLanguage':'lisp'")))
               ("grpc_config[1].clientHostname"
                ,(choices (choice "a.A" "'percentage':0") (choice "b.B" "'clientHostname':[1]")))
               ("methodConfig[0].name[0].service"
                "grpc_config=[{\"serviceConfig\":{\"methodConfig\":[{\"name\":[{\"service\":1}]}]}}]"))
        do (with-signalled (error config:service-config-error (chosen 0 text))
             (is (string= path (config:service-config-error-path error)) "~A" error))))
