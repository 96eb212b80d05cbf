;;;; Filters of the binary log (gRFC A16): the gRFC's examples, precedence, refused texts.

(in-package #:clgrpc.tests.logs)

(defun limits (filter path)
  "The limits of FILTER, a text, for the method of PATH: octets of metadata and of messages, :all
for no limit; nil if the method is not logged."
  (let ((limits (logs::limits-for (logs::parse-filter filter) path)))
    (flet ((shown (number) (if (= number most-positive-fixnum) :all number)))
      (and limits
           (list (shown (logs::limits-header limits)) (shown (logs::limits-message limits)))))))

(test filters-mean-what-the-document-says
  (loop for (filter path expected)
          in '(("" "/Foo/Bar" nil)
               ("*" "/Foo/Bar" (:all :all))
               ("*{h}" "/Foo/Bar" (:all 0))
               ("*{h:10}" "/Foo/Bar" (10 0))
               ("*{m}" "/Foo/Bar" (0 :all))
               ("*{m:256}" "/Foo/Bar" (0 256))
               ("*{h;m}" "/Foo/Bar" (:all :all))
               ("*{h:1;m:2}" "/Foo/Bar" (1 2))
               ("*{h;m:2}" "/Foo/Bar" (:all 2))
               ("*{h:0;m:0}" "/Foo/Bar" (0 0))
               ("Foo/*" "/Foo/Bar" (:all :all))
               ("Foo/*" "/a.Foo/Bar" nil)
               ("a.b.Foo/*" "/a.b.Foo/Bar" (:all :all))
               ("Foo/*,-Foo/Bar" "/Foo/Bar" nil)
               ("-Foo/Bar,Foo/*" "/Foo/Bar" nil)
               ("Foo/*,-Foo/Bar" "/Foo/Baz" (:all :all))
               ("*,-Foo/Bar" "/Foo/Bar" nil)
               ("Foo/*,Foo/Bar{m:256}" "/Foo/Bar" (0 256))
               ("Foo/*,Foo/Bar{m:256}" "/Foo/Baz" (:all :all))
               ("Foo/Bar{m:256},Foo/*{h},*{m:1}" "/Foo/Bar" (0 256))
               ("Foo/Bar{m:256},Foo/*{h},*{m:1}" "/Foo/Baz" (:all 0))
               ("Foo/Bar{m:256},Foo/*{h},*{m:1}" "/Other/Bar" (0 1)))
        do (is (equal expected (limits filter path)) "~A of ~A" filter path)))

(test filters-that-are-wrong-are-refused
  (dolist (filter '("," "*," "*,*" "Foo" "Foo/" "/Bar" "*/Bar" "-*" "-Foo/*" "-Foo/Bar{h}" "*{}"
                    "*{x}" "*{h:}" "*{h:-1}" "*{h:a}" "*{m;h}" "*{h,m}" "*{h;m;m}" "*{h" "*h}"
                    "*{h}{m}" "Foo/Bar,Foo/Bar" "Foo/*,Foo/*{h}" "-Foo/Bar,Foo/Bar" "Foo/B r"
                    " *" "*{h:123456789012345678901}"))
    (signals misuse (logs::parse-filter filter) "~S is read" filter))
  (signals misuse (grpc:make-binary-log :filter "Foo"))
  (signals misuse (grpc:make-binary-log :filter 5)))
